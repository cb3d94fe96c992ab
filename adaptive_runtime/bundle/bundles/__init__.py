"""Bundles on the device: SubNets in one folder with a manifest, their common weights stored once.

[The run time](docs/runtime.md) lists the files and the checks.
"""

from typing import TYPE_CHECKING

from importing.lazy import public_names

if TYPE_CHECKING:
    from adaptive_runtime.bundle.bundles.blocks import BLOCKS_FILE, BlocksManifest, BundledSegment
    from adaptive_runtime.bundle.bundles.bundle import OpenBundle
    from adaptive_runtime.bundle.bundles.calibration import CALIBRATION_FILE, MOST_BYTES, CalibrationSample, half
    from adaptive_runtime.bundle.bundles.formats import BUNDLE_FORMATS, CHAIN_FORMATS, BundleFormat
    from adaptive_runtime.bundle.bundles.found import FOUND_FILE, FoundSubNets
    from adaptive_runtime.bundle.bundles.manifest import (
        BUNDLE_FILE,
        SIGNATURE_FILE,
        BundleDevice,
        BundleManifest,
        BundleOrigin,
        BundleRun,
        FileFacts,
    )
    from adaptive_runtime.bundle.bundles.signatures import read_key, signature, verify
    from adaptive_runtime.bundle.bundles.sources import AdaptationSource, SourceImages
    from adaptive_runtime.bundle.bundles.subnets import (
        AdaptableNet,
        AdaptableNorm,
        BundledExit,
        BundledNet,
        BundledPlacement,
        BundledSubNet,
        EarlyAnswers,
        NetFigures,
        SubNetLatency,
        SubNetMemory,
    )
    from adaptive_runtime.bundle.bundles.taken import TakenSamples
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = [
    "BLOCKS_FILE",
    "BUNDLE_FILE",
    "BUNDLE_FORMATS",
    "CALIBRATION_FILE",
    "CHAIN_FORMATS",
    "FOUND_FILE",
    "MOST_BYTES",
    "SIGNATURE_FILE",
    "AdaptableNet",
    "AdaptableNorm",
    "AdaptationSource",
    "BlocksManifest",
    "BundleDevice",
    "BundleFormat",
    "BundleManifest",
    "BundleOrigin",
    "BundleRun",
    "BundledExit",
    "BundledNet",
    "BundledPlacement",
    "BundledSegment",
    "BundledSubNet",
    "CalibrationSample",
    "EarlyAnswers",
    "FileFacts",
    "FoundSubNets",
    "NetFigures",
    "OpenBundle",
    "SourceImages",
    "SubNetLatency",
    "SubNetMemory",
    "TakenSamples",
    "half",
    "read_key",
    "signature",
    "verify",
]
