"""What a training step will cost on several devices, from what it costs on one."""
