"""Bundles of the latest run."""

from pathlib import Path

from adaptive_runtime.bundle.bundles import BUNDLE_FILE
from flows.storage.layout import EXPORTS_FOLDER
from flows.storage.mirror import exports_here
from tasks.base.errors import UserError
from tasks.export.bundles import BUNDLE_FOLDER


def bundle_of(output_dir: Path | str, device: str, given: Path | None, option: str) -> Path:
    """The folder of a device's bundle, or the one that was given; it comes from a URL. UserError: it is not there."""
    found = given or exports_here(output_dir, device) / EXPORTS_FOLDER / device / BUNDLE_FOLDER
    if not (found / BUNDLE_FILE).is_file():
        hint = f"the run writes it with export.bundle=true: autotailor export export.bundle=true …; or {option}=FOLDER"
        raise UserError(f"bundle '{found}'", "is not there", next_step=hint)
    return found


def devices_with_bundles(output_dir: Path) -> list[str]:
    """The devices whose bundles the latest run has written."""
    files = sorted((output_dir / EXPORTS_FOLDER).glob(f"*/{BUNDLE_FOLDER}/{BUNDLE_FILE}"))
    return [file.parent.parent.name for file in files]
