"""Image models: PixelCNN and a multiscale model with O(log N) passes; training and sampling."""
