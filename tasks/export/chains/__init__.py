"""Chains: a SubNet with exits as segments in ONNX files, or as one net of ncnn.

Beside them is the manifest that a host program follows (`adaptive_runtime.chains`).
"""

from tasks.export.chains.bundled import bundle_chain, chain_exits
from tasks.export.chains.making import chain_statistics
from tasks.export.chains.writing import ChainWriter, require_exits

__all__ = ["ChainWriter", "bundle_chain", "chain_exits", "chain_statistics", "require_exits"]
