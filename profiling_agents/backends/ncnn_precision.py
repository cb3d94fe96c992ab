"""The precisions in which ncnn really computes on this processor, found by running a small layer in each precision.

ncnn takes every option everywhere, and ignores an option that its layers for the processor lack: on x86 a convolution in
fp16 gives the very bits of fp32. A precision counts as supported when its outputs differ from fp32 by rounding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import ncnn
import numpy as np

from profiling_agents.messages import Precision

OPTIONS: Mapping[Precision, tuple[str, ...]] = {
    "fp32": (),
    "bf16": ("use_bf16_packed", "use_bf16_storage"),
    "fp16": ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic"),
    "fp16_storage": ("use_fp16_packed", "use_fp16_storage"),
}
"""ncnn's options for each precision that is set by options; all other options are off."""

CHANNELS, SIZE = 16, 8
LARGEST_ROUNDING = 0.05
"""Relative to the largest output; a larger difference is another computation, not rounding."""


@dataclass(frozen=True, slots=True)
class SupportedPrecisions:
    """`precisions`: fp32 first. `arithmetic`: the precision in which products of fp16 are added up; None without fp16."""

    precisions: tuple[Precision, ...]
    arithmetic: Precision | None

    def arithmetic_of(self, precision: Precision) -> Precision | None:
        """The precision in which products of fp16 are added up; None if `precision` has no products of fp16."""
        if precision == "fp16":
            return self.arithmetic
        return "fp32" if precision == "fp16_storage" else None


def precision_options(precision: Precision) -> dict[str, bool]:
    """The fields of ncnn's `Option` for one precision: its own are on, those of the other precisions are off."""
    names = dict.fromkeys(name for names in OPTIONS.values() for name in names)
    return {name: name in OPTIONS[precision] for name in names}


@cache
def probe() -> SupportedPrecisions:
    """Run one convolution in every precision and compare the outputs with fp32; takes milliseconds."""
    outputs = {precision: _convolution(precision_options(precision)) for precision in OPTIONS}
    reference = outputs["fp32"]
    rounded = tuple(precision for precision, output in outputs.items() if _is_rounded(output, reference))
    arithmetic: Precision | None = None
    if "fp16" in rounded:
        arithmetic = "fp32" if np.array_equal(outputs["fp16_storage"], outputs["fp16"]) else "fp16"
    return SupportedPrecisions(("fp32", *rounded), arithmetic)


def _is_rounded(output: np.ndarray, reference: np.ndarray) -> bool:
    difference = float(np.abs(output - reference).max() / np.abs(reference).max())
    return 0.0 < difference <= LARGEST_ROUNDING


def _convolution(options: Mapping[str, bool]) -> np.ndarray:
    """A 3x3 convolution of fixed random weights on a fixed random input; inputs and outputs are fp32."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((CHANNELS, CHANNELS, 3, 3), dtype=np.float32)
    x_CHW = rng.standard_normal((CHANNELS, SIZE, SIZE), dtype=np.float32)
    layer = f"Convolution conv 1 1 in0 out0 0={CHANNELS} 1=3 4=1 5=0 6={weights.size}"
    net = ncnn.Net()
    net.opt.num_threads = 1
    net.opt.use_vulkan_compute = False
    for name, value in options.items():
        setattr(net.opt, name, value)
    net.load_param_mem(f"7767517\n2 2\nInput in0 0 1 in0\n{layer}\n")
    content = bytes(4) + weights.tobytes()
    net.load_model_mem(content)
    extractor = net.create_extractor()
    extractor.input("in0", ncnn.Mat(x_CHW).clone())
    status, mat = extractor.extract("out0")
    assert status == 0
    return np.array(mat)
