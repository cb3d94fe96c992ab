"""Bundles: all winners of a device in one folder, to switch between at run time (`adaptive_runtime.bundles`)."""

from tasks.export.bundles.writing import BUNDLE_FOLDER, write_bundle

__all__ = ["BUNDLE_FOLDER", "write_bundle"]
