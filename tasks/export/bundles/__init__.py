"""Bundles: all winners of a device in one folder, to switch between at run time (`adaptive_runtime.bundles`)."""

from tasks.export.bundles.adaptable import require_adaptable
from tasks.export.bundles.blocks import require_blocks, single_replacements
from tasks.export.bundles.formats import FurtherFormat, further_formats, required_files
from tasks.export.bundles.placements import BundlePlacements
from tasks.export.bundles.writing import BUNDLE_FOLDER, write_bundle

__all__ = [
    "BUNDLE_FOLDER",
    "BundlePlacements",
    "FurtherFormat",
    "further_formats",
    "require_adaptable",
    "require_blocks",
    "required_files",
    "single_replacements",
    "write_bundle",
]
