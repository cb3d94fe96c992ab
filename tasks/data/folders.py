"""Files in one folder per class: PATH/train/CLASS/*, PATH/val/CLASS/*, PATH/test/CLASS/*, or PATH/CLASS/* split by shares."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torchvision.datasets import DatasetFolder

from tasks.base.errors import UserError
from tasks.data.settings import DataSettings
from tasks.data.source import first_of, split_folders


class ClassFiles(NamedTuple):
    """All files with the number of their class, and the files of each split that has its own folder."""

    files: list[Path]
    labels: list[int]
    class_names: list[str]
    splits: dict[str, np.ndarray]


class _Classes(DatasetFolder):
    """Folders of files; hidden folders, such as `.git`, are not classes."""

    def find_classes(self, directory: str | Path) -> tuple[list[str], dict[str, int]]:
        """Names of the classes, and their numbers."""
        names, _ = super().find_classes(directory)
        visible = [name for name in names if not name.startswith(".")]
        return visible, {name: number for number, name in enumerate(visible)}


def class_files(settings: DataSettings, content: str, suffixes: Sequence[str]) -> ClassFiles:
    """The files of the folder `settings.path`. content: their content, for messages; suffixes: of their names.

    Raises UserError for a missing or empty folder, or classes that differ.
    """
    files: list[Path] = []
    labels: list[int] = []
    names: list[str] = []
    splits: dict[str, np.ndarray] = {}
    for split, folder in split_folders(settings).items():
        found = _scan(folder, content, suffixes)
        names = names or found.classes
        _check_same(folder, names, found.classes)
        splits[split] = np.arange(len(files), len(files) + len(found.samples))
        files += [Path(file) for file, _ in found.samples]
        labels += [label for _, label in found.samples]
    return ClassFiles(files, labels, names, splits)


def _scan(folder: Path, content: str, suffixes: Sequence[str]) -> DatasetFolder:
    try:
        found = _Classes(str(folder), loader=Path, extensions=tuple(suffixes), allow_empty=True)
    except FileNotFoundError:
        found = None
    if found is None or not found.samples:
        raise UserError(
            f"data folder '{folder}'",
            f"no class folder with {content}",
            allowed=f"CLASS/*{{{','.join(suffixes)}}}",
            next_step="choose another with data.path=FOLDER",
        )
    return found


def _check_same(folder: Path, names: list[str], found: list[str]) -> None:
    differing = {
        "no folder for": [name for name in names if name not in found],
        "a folder for": [name for name in found if name not in names],
    }
    said = [f"{what} {first_of(classes)}" for what, classes in differing.items() if classes]
    if said:
        raise UserError(f"data folder '{folder}'", " and ".join(said), allowed="the classes of train, all of them")
