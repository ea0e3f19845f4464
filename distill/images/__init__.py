"""Image models distilled: guidance into the model it guides, a PixelCNN into flows."""
