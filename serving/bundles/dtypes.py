"""The names of element types in NumPy, the inference protocol and TensorFlow."""

import numpy as np

# The open inference protocol (version 2), tensorflow.DataType, NumPy.
_TABLE = (
    ("BOOL", "DT_BOOL", "?"),
    ("UINT8", "DT_UINT8", "u1"),
    ("UINT16", "DT_UINT16", "<u2"),
    ("UINT32", "DT_UINT32", "<u4"),
    ("UINT64", "DT_UINT64", "<u8"),
    ("INT8", "DT_INT8", "i1"),
    ("INT16", "DT_INT16", "<i2"),
    ("INT32", "DT_INT32", "<i4"),
    ("INT64", "DT_INT64", "<i8"),
    ("FP16", "DT_HALF", "<f2"),
    ("FP32", "DT_FLOAT", "<f4"),
    ("FP64", "DT_DOUBLE", "<f8"),
)
V2_DTYPES = {v2: np.dtype(name) for v2, _, name in _TABLE}
V2_NAMES = {dtype: v2 for v2, dtype in V2_DTYPES.items()}
TENSORFLOW_DTYPES = {tensorflow: np.dtype(name) for _, tensorflow, name in _TABLE}
TENSORFLOW_NAMES = {dtype: tensorflow for tensorflow, dtype in TENSORFLOW_DTYPES.items()}
