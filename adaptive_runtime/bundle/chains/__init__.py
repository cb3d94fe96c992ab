"""Chains on the device: a SubNet with exits as files, run segment by segment until an answer is good enough.

[Exits](docs/exits.md#on-the-device) shows the files and host programs in Python and C++.
"""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from adaptive_runtime.bundle.chains.chain import ChainAnswers, ExitChain, JoinedFiles, OnnxChain, all_leave_at
    from adaptive_runtime.bundle.chains.manifest import (
        PARTS_FILE,
        SEGMENTS_FILE,
        ChainFormat,
        ChainManifest,
        ChainSegment,
        ChainTensor,
        ImagePreparation,
        InputPreparation,
        InputsPreparation,
        NcnnPair,
        PartsManifest,
        PartTensor,
        SamplePreparation,
        SubnetPart,
        text_of,
    )
    from adaptive_runtime.bundle.chains.runs import (
        ChainRun,
        ChainRuntime,
        NcnnChain,
        free_net,
        inputs_of,
        require_runtime,
        session_options,
    )
else:
    __getattr__ = public_names(__name__, __file__)
