"""Lossless compression of the elements of any model, with its exact conditional distributions.

`container` reads and writes the files of any kind of elements, `stream` codes them; `conditionals`
and `odds` say what a model expects. `arrays` has `compress` and `decompress`, and the files of
arrays.
"""
