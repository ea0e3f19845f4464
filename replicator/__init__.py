"""How a training step runs on one or many devices: the loop, its state and its checkpoints."""
