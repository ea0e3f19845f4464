"""Distillation of image models: guidance into the guided model, a PixelCNN into flows."""
