"""Lossless compression of the elements of any model, by its exact conditional distributions.

`files` compresses and decompresses by the `conditionals` that a model offers: those of `symbols`
for any `Autoregressive`, and those in `pixelcnn` for images. `arrays` defines files of arrays.
"""
