"""The gRPC server: inference, prediction, speech and health."""
