"""The models over gRPC: the inference protocol, prediction, speech, health."""
