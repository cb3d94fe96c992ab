"""Chains on the device: a SubNet with exits as files, run segment by segment until an answer is good enough.

[Exits](docs/exits.md#on-the-device) shows the files and host programs in Python and C++.
"""

from adaptive_runtime.chains.chain import ChainAnswers, ExitChain
from adaptive_runtime.chains.manifest import (
    SEGMENTS_FILE,
    ChainFormat,
    ChainManifest,
    ChainSegment,
    ChainTensor,
    ImagePreparation,
)

__all__ = [
    "SEGMENTS_FILE",
    "ChainAnswers",
    "ChainFormat",
    "ChainManifest",
    "ChainSegment",
    "ChainTensor",
    "ExitChain",
    "ImagePreparation",
]
