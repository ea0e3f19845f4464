"""Lossless code and files of the elements of any model, by its exact conditionals.

`files` compresses and decompresses, by `conditionals` that a model offers: `symbols` for any
`Autoregressive`, and those of images in `pixelcnn`. `arrays` is what a file of arrays holds.
"""
