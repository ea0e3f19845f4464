"""`onepass bench images`: samplers of a PixelCNN and of the multiscale model, side by side."""
