"""Speed on a GPU, on a machine with JAX and PyTorch and without TensorFlow, and training there."""
