"""Formats of a bundle: the files that a runtime reads, and the precision in which it computes with them.

A SubNet may be there in several. Formats of one runtime may share files: ncnn computes in bf16 with the files of fp32.
"""

from collections.abc import Mapping
from typing import Literal, get_args

from adaptive_runtime.chains import ChainFormat

BundleFormat = Literal["onnx", "onnx_int8", "ncnn", "ncnn_fp16", "ncnn_bf16"]
BUNDLE_FORMATS: tuple[BundleFormat, ...] = get_args(BundleFormat)
CHAIN_FORMATS: Mapping[BundleFormat, ChainFormat] = {
    "onnx": "onnx",
    "onnx_int8": "onnx",
    "ncnn": "ncnn",
    "ncnn_fp16": "ncnn",
    "ncnn_bf16": "ncnn",
}
"""The kind of files that a runtime reads in each format."""
