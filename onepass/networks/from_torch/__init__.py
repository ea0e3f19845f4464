"""PyTorch networks as TensorFlow functions, by `torch.export` and a table of operations."""
