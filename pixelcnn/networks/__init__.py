"""Networks of the image models: PixelCNN, multiscale model, and encoders of conditions."""
