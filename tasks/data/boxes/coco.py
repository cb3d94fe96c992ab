"""COCO's JSON: PATH/annotations/*.json or PATH/*.json, one file per split with the split in its name, or one file to be split.

Images are in PATH/NAME, PATH/images/NAME, PATH/images or PATH, with annotations in `instances_NAME.json` or `NAME.json`.
Source: the format of Microsoft COCO: Common Objects in Context (ECCV 2014), as on cocodataset.org.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_runtime.base.files import json_of
from tasks.base.errors import UserError
from tasks.data.boxes.annotated import AnnotatedImage, Box, UnusedBoxes, share_of, sized
from tasks.data.boxes.pictures import BoxedPictures, opened_source, split_named
from tasks.data.settings import DataSettings

CROWD = "around crowds (iscrowd), left out"


def open_coco(settings: DataSettings) -> tuple[BoxedPictures, dict[str, np.ndarray]]:
    """The source and its splits. UserError: missing or broken annotations with file and row, and missing images."""
    assert settings.path is not None
    left_out, declared = UnusedBoxes(), dict[str, None]()
    splits = {}
    for split, file in _files(settings.path).items():
        reader = _Reader(file, settings.path, left_out)
        splits[split] = list(reader.images())
        declared |= dict.fromkeys(reader.names.values())
    return opened_source(settings, splits, left_out, list(declared))


def _files(root: Path) -> dict[str, Path]:
    """Annotation files by split."""
    folder = root / "annotations" if (root / "annotations").is_dir() else root
    files = sorted(folder.glob("*.json"))
    found = {split: file for file in files if (split := split_named(file.stem))}
    if len(files) == 1:
        return {"train": files[0]}
    if "train" not in found or len(found) != len(files):
        raise UserError(
            f"data folder '{root}'",
            f"{len(files)} JSON files ({', '.join(file.name for file in files[:5]) or 'none'})",
            allowed="one, or one for each split with train, val or test in its name, there or in annotations/",
            next_step="choose another with data.path=FOLDER",
        )
    return dict(sorted(found.items(), key=lambda pair: pair[0] != "train"))


class _Reader:
    """One file of annotations. names: names of the categories, by id."""

    def __init__(self, file: Path, root: Path, left_out: UnusedBoxes) -> None:
        self._file, self._left_out = file, left_out
        content = self._content()
        self.names = {
            number: str(self._value(entry, "name", where))
            for where, number, entry in self._entries(content, "categories")
        }
        self._images: dict[int, tuple[str, dict[str, Any]]] = {
            number: (where, entry) for where, number, entry in self._entries(content, "images")
        }
        self._annotations = self._list(content, "annotations")
        part = file.stem.removeprefix("instances_")
        self._folders = (root / part, root / "images" / part, root / "images", root)

    def images(self) -> Iterator[AnnotatedImage]:
        """Each image with its boxes, in the order of the file."""
        sizes = {
            number: sized(where, self._value(entry, "width", where), self._value(entry, "height", where))
            for number, (where, entry) in self._images.items()
        }
        objects: dict[int, list[tuple[str, Box]]] = {number: [] for number in self._images}
        for row, entry in enumerate(self._annotations):
            where = self._where("annotations", row)
            image = self._known(entry, "image_id", self._images, where)
            category = self._known(entry, "category_id", self.names, where)
            if entry.get("iscrowd"):
                self._left_out.add(CROWD, where)
                continue
            box = share_of(where, self._corners(entry, where), sizes[image], self._left_out)
            if box is not None:
                objects[image].append((self.names[category], box))
        for number, (where, entry) in self._images.items():
            own = objects[number]
            width, height = sizes[number]
            yield AnnotatedImage(
                file=self._path(str(self._value(entry, "file_name", where)), where),
                where=where,
                width=width,
                height=height,
                names=tuple(name for name, _ in own),
                boxes=tuple(box for _, box in own),
            )

    def _content(self) -> dict[str, Any]:
        try:
            content = json_of(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(
                f"annotations '{self._file}'", f"no readable JSON ({error})", next_step="export it again"
            ) from error
        if not isinstance(content, dict):
            raise UserError(f"annotations '{self._file}'", "no object", allowed="images, annotations and categories")
        return content

    def _where(self, name: str, row: int) -> str:
        return f"annotations '{self._file}', {name}[{row}]"

    def _list(self, content: dict[str, Any], name: str) -> list[dict[str, Any]]:
        entries = content.get(name)
        if not isinstance(entries, list):
            raise UserError(
                f"annotations '{self._file}'", f"no list '{name}'", allowed="images, annotations and categories"
            )
        for row, entry in enumerate(entries):
            if not isinstance(entry, dict):
                raise UserError(self._where(name, row), f"{entry!r:.40}", allowed="an object")
        return entries

    def _entries(self, content: dict[str, Any], name: str) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """Place, id and content of each entry."""
        seen: dict[int, int] = {}
        for row, entry in enumerate(self._list(content, name)):
            where = self._where(name, row)
            number = self._value(entry, "id", where)
            if not isinstance(number, int):
                raise UserError(where, f"id is {number!r}", allowed="a whole number")
            if number in seen:
                raise UserError(where, f"id {number} is that of {name}[{seen[number]}]", allowed="each id once")
            seen[number] = row
            yield where, number, entry

    def _value(self, entry: dict[str, Any], name: str, where: str) -> Any:
        if name not in entry:
            raise UserError(where, f"no '{name}'", next_step="mend the annotation")
        return entry[name]

    def _known(self, entry: dict[str, Any], name: str, known: dict[int, Any], where: str) -> int:
        number = self._value(entry, name, where)
        if not isinstance(number, int) or number not in known:
            raise UserError(where, f"{name} {number!r} is no id of the file", next_step="mend the annotation")
        return number

    def _corners(self, entry: dict[str, Any], where: str) -> Sequence[object]:
        """(x0, y0, x1, y1) of COCO's (x, y, width, height)."""
        box = self._value(entry, "bbox", where)
        if not isinstance(box, list) or len(box) != 4 or not all(isinstance(value, int | float) for value in box):
            raise UserError(where, f"bbox is {box!r:.60}", allowed="[x, y, width, height] in pixels")
        left, top, width, height = box
        return left, top, left + width, top + height

    def _path(self, name: str, where: str) -> Path:
        for folder in self._folders:
            if (folder / name).is_file():
                return folder / name
        places = ", ".join(f"'{folder}'" for folder in self._folders)
        raise UserError(where, f"there is no image '{name}'", allowed=f"in {places}")
