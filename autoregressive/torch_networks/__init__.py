"""PyTorch networks as TensorFlow functions: `torch.export`, a neutral graph and a table of rules."""
