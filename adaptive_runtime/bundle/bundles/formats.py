"""Formats of a bundle: each names the files that a runtime reads, and the precision in which it computes with them.

A bundle may have a SubNet in several formats. Formats of one runtime may share files: ncnn computes in bf16 with fp32 files.
"""

from collections.abc import Mapping
from typing import Literal, get_args

from adaptive_runtime.bundle.chains import ChainFormat

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
