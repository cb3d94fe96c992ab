"""Chains: a SubNet with exits as segments in ONNX files, or as one net of ncnn.

Beside them is the manifest that a host program follows (`adaptive_runtime.bundle.chains`).
"""

from tasks.export.chains.bundled import BundledChain, bundle_chain, chain_exits, copy_ncnn_chain
from tasks.export.chains.making import chain_statistics
from tasks.export.chains.writing import FORMATS, ChainWriter, require_exits

__all__ = [
    "FORMATS",
    "BundledChain",
    "ChainWriter",
    "bundle_chain",
    "chain_exits",
    "chain_statistics",
    "copy_ncnn_chain",
    "require_exits",
]
