"""Tensors between segments as bytes: fp32, fp16, or int8 with one scale for each tensor."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from profiling_agents.messages import CODED_BYTES, ActivationCoding, SentActivation, Shape

FloatArray = NDArray[np.float32]
TYPES: dict[ActivationCoding, str] = {"fp32": "<f4", "fp16": "<f2", "int8": "|i1"}
MOST_INT8 = 127
MOST_FP16 = float(np.finfo(np.float16).max)
STEPS: dict[ActivationCoding, float] = {"fp32": 0.0, "fp16": 2.0**-11, "int8": 0.5 / MOST_INT8}
"""The largest change of a value by coding, relative to the largest value of its tensor."""


def encoded(tensor: FloatArray, coding: ActivationCoding) -> tuple[SentActivation, bytes]:
    """A tensor in a coding. A tensor with NaN or infinite values, or beyond fp16, stays in fp32."""
    if coding == "int8":
        most = float(np.abs(tensor).max(initial=0.0))
        scale = most / MOST_INT8 or 1.0
        # smaller scales would lose their own precision
        if math.isfinite(most) and scale >= np.finfo(np.float32).tiny:
            return SentActivation(coding="int8", scale=scale), np.rint(tensor / scale).astype(TYPES["int8"]).tobytes()
    if coding == "fp16" and np.abs(tensor).max(initial=0.0) <= MOST_FP16:
        return SentActivation(coding="fp16"), tensor.astype(TYPES["fp16"]).tobytes()
    return SentActivation(coding="fp32"), np.ascontiguousarray(tensor, TYPES["fp32"]).tobytes()


def decoded(sent: SentActivation, shape: Shape, content: bytes | bytearray | memoryview) -> FloatArray:
    """The decoded tensor; the content has exactly its bytes."""
    values = np.frombuffer(content, TYPES[sent.coding]).reshape(shape)
    if sent.coding == "int8":
        return values * np.float32(sent.scale)
    return values.astype(np.float32, copy=False)


def decoded_all(
    sent: Sequence[SentActivation], shapes: Sequence[Shape], content: bytes | bytearray | memoryview
) -> list[FloatArray]:
    """Decoded tensors that lie one behind the other; `coded_bytes` gives their total size."""
    whole, found, start = memoryview(content), [], 0
    for one, shape in zip(sent, shapes, strict=True):
        end = start + math.prod(shape) * CODED_BYTES[one.coding]
        found.append(decoded(one, shape, whole[start:end]))
        start = end
    return found
