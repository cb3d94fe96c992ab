"""Types of arrays that several rooms name, and the size of their elements."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
"""Samples, features and answers of networks."""
Values = NDArray[np.float64]
"""Times, costs, weights and other computed numbers."""
Integers = NDArray[np.int64]
"""Counts, classes and positions."""
FLOAT_BYTES = 4
"""Size of a float32 [bytes]."""
TENSOR_TYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {f"tensor({name})": np.dtype(name) for name in ("float16", "bool")}
    | {"tensor(float)": np.dtype(np.float32), "tensor(double)": np.dtype(np.float64)}
    | {f"tensor({sign}int{bits})": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
"""Types of tensors, as onnxruntime calls them, in numpy."""
