"""Lossless compression of the elements of any model, with its exact conditional distributions.

`files` compresses and decompresses with the `Conditionals` of a model: `symbols` defines them for
any `Autoregressive`, `pixelcnn` for images. `arrays` defines files of arrays.
"""
