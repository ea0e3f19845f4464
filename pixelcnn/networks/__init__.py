"""Networks of the image models: PixelCNN, the multiscale model and encoders of conditions."""
