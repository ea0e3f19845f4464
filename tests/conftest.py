import os

# TensorFlow reads it once, when it is first imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
