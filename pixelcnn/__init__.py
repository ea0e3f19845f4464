"""Image models: PixelCNN, the multiscale model of O(log N) passes, their training and sampling."""
