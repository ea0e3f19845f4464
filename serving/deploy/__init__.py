"""What serves a folder of models elsewhere: Ray Serve, Kubernetes, TensorFlow Serving."""
