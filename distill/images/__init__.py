"""Distillation of image models: a model's guidance into a like model, a PixelCNN into flows."""
