"""Types of arrays that several rooms name, and the size of their elements."""

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
