"""Distillation of image models: guidance into an unguided model, and a PixelCNN into flows."""
