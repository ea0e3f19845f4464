"""The models over gRPC: inference, prediction, speech and health."""
