"""The models over gRPC: inference, prediction, speech, health."""
