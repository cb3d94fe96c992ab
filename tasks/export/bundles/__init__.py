"""Bundles: all winners of a device in one folder, for switching between them on it (`adaptive_runtime.bundle.bundles`)."""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from tasks.export.bundles.extras import require_adaptable, require_blocks, single_replacements
    from tasks.export.bundles.formats import FurtherFormat, further_formats
    from tasks.export.bundles.writing import BundleContents, BundleRequest, PlacementWriter, write_bundle
    from tasks.export.settings import BUNDLE_FOLDER, required_files
else:
    __getattr__ = public_names(__name__, __file__)
