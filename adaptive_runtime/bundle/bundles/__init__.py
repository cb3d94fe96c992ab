"""Bundles on the device: SubNets in one folder with a manifest, their common weights stored once.

[The run time](docs/runtime.md) lists the files and the checks.
"""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from adaptive_runtime.bundle.bundles.bundle import (
        CALIBRATION_FILE,
        MOST_BYTES,
        AdaptationSource,
        CalibrationSample,
        OpenBundle,
        SourceImages,
        half,
        read_key,
        signature,
        verify,
    )
    from adaptive_runtime.bundle.bundles.manifest import (
        BLOCKS_FILE,
        BUNDLE_FILE,
        FOUND_FILE,
        SIGNATURE_FILE,
        BlocksManifest,
        BundleDevice,
        BundledSegment,
        BundleManifest,
        BundleOrigin,
        BundleRun,
        FileFacts,
        FoundSubNets,
    )
    from adaptive_runtime.bundle.bundles.subnets import (
        BUNDLE_FORMATS,
        CHAIN_FORMATS,
        AdaptableNet,
        AdaptableNorm,
        BundledExit,
        BundledNet,
        BundledPlacement,
        BundledSubNet,
        BundleFormat,
        EarlyAnswers,
        NetFigures,
        SubNetLatency,
        SubNetMemory,
        TakenSamples,
    )
else:
    __getattr__ = public_names(__name__, __file__)
