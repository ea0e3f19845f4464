"""Models in processes of their own, from which the kernel takes files, network and memory."""
