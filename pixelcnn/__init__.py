"""Images: PixelCNN, the multiscale model of O(log N) passes, their samplers and conditioning."""
