"""Images with boxes as a source of data, from the user's files: COCO's JSON, or Pascal VOC's XML.

Annotations have one form for all file formats; errors are one line, skipped boxes are counted.

COCO's JSON is PATH/annotations/*.json or PATH/*.json: one file per split with the split in its name, or one file to be
split. Images are in PATH/NAME, PATH/images/NAME, PATH/images or PATH, with annotations in `instances_NAME.json` or
`NAME.json`. Source: the format of Microsoft COCO: Common Objects in Context (ECCV 2014), as on cocodataset.org.

Pascal VOC's XML is PATH/Annotations/*.xml with PATH/JPEGImages/*; splits come from PATH/ImageSets/Main/*.txt, or from
shares. Source: The PASCAL Visual Object Classes Challenge (IJCV 2010). Corners are pixels counted from 1, both inside
the box.

Legend: B batch, D draws, N boxes of an image, M boxes of an image at most.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
import torch
from PIL import Image

from adaptive_runtime.base.files import json_of
from tasks.base.errors import UserError
from tasks.data.images import WHOLE_SCALING, Decoder, random_box, whole_box
from tasks.data.problems.detection import Rows, flipped, packed, within
from tasks.data.settings import DataSettings
from tasks.data.source import Source, Splits, first_of, numbered, rarest_classes

Box = tuple[float, float, float, float]
WITHOUT_AREA, OUTSIDE, CUT = (
    "without area, left out",
    "outside of their image, left out",
    "cut at the edge of their image",
)
SLACK_PX = 1.0
"""Distance by which rounding may move a box out of its image [px] before it counts as cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedImage:
    """An image file, its size [px] in the annotations, and the boxes (x0, y0, x1, y1) of its objects, as shares of the image.

    where: the row of the annotations, for messages.
    """

    file: Path
    where: str
    width: int
    height: int
    names: tuple[str, ...]
    boxes: tuple[Box, ...]


UnusedBoxes = dict[str, list[str]]
"""The places of boxes that are left out or changed, by the reason in words."""


def sized(where: str, width: object, height: object) -> tuple[int, int]:
    """The size of an image [px]. UserError if it is invalid."""
    sides = [_number(where, name, value) for name, value in (("width", width), ("height", height))]
    if min(sides) < 1 or any(side % 1 for side in sides):
        raise UserError(where, f"an image of {width} x {height} pixels", allowed="whole numbers from 1")
    return int(sides[0]), int(sides[1])


def share_of(where: str, corners: Sequence[object], size: tuple[int, int], left_out: UnusedBoxes) -> Box | None:
    """A box (x0, y0, x1, y1) [px] as shares of its image, cut at the image's edges; None if nothing of it is left.

    size: (width, height). UserError for values that are not numbers.
    """
    names = ("left", "top", "right", "bottom")
    edges = [_number(where, name, value) for name, value in zip(names, corners, strict=True)]
    x0, y0, x1, y1 = edges
    if x1 <= x0 or y1 <= y0:
        left_out.setdefault(WITHOUT_AREA, []).append(where)
        return None
    limits = (size[0], size[1]) * 2
    cut = [min(max(edge, 0.0), float(limit)) for edge, limit in zip(edges, limits, strict=True)]
    if cut[2] <= cut[0] or cut[3] <= cut[1]:
        left_out.setdefault(OUTSIDE, []).append(where)
        return None
    if max(abs(edge - inside) for edge, inside in zip(edges, cut, strict=True)) > SLACK_PX:
        left_out.setdefault(CUT, []).append(where)
    return cut[0] / size[0], cut[1] / size[1], cut[2] / size[0], cut[3] / size[1]


def _number(where: str, name: str, value: object) -> float:
    try:
        found = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise UserError(where, f"{name} is {value!r}", allowed="a number", next_step="mend the annotation")
    return found


BACKGROUND = "background"
SEEN = 0.25
"""Least share of a box inside an augmented image."""


class BoxedPictures(Source):
    """Files with boxes, decoded on demand. labels: the rarest class of each image, if that has enough images.

    Class 0 is the background; images without boxes belong to it.
    """

    scaling = WHOLE_SCALING
    has_classes = False

    def __init__(
        self,
        settings: DataSettings,
        by_split: Mapping[str, Sequence[AnnotatedImage]],
        left_out: UnusedBoxes,
        declared: Sequence[str] = (),
    ) -> None:
        """declared: names of all classes in the annotations. UserError: no image has a box."""
        images, self.given = numbered(by_split)
        names = sorted({name for image in images for name in image.names})
        if not names:
            got = f"{len(images)} images without any box"
            raise UserError(f"data '{settings.path}'", got, next_step="choose another with data.path=FOLDER")
        self.class_names = (BACKGROUND, *names)
        self.notes = tuple(
            f"data: {len(places)} {'box' if len(places) == 1 else 'boxes'} {reason} (first: {places[0]})"
            for reason, places in left_out.items()
        )
        if unused := [name for name in declared if name not in names]:
            described = (
                f"data: {len(unused)} of {len(declared)} classes have no box and are left out ({first_of(unused)})"
            )
            self.notes += (described,)
        self._images = images
        self._rows = [_rows(image, self.class_names) for image in images]
        self.labels = rarest_classes([rows[:, 0].astype(np.int64) for rows in self._rows], len(self.class_names))
        self._decoder = Decoder(settings, whole_box)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Decoded images; augmented by a random resized crop and a flip."""
        own = [self._images[index] for index in indices]
        return self._decoder.batch([(f"'{one.file}' of {one.where}", partial(_opened, one)) for one in own], draws)

    def boxed(self, indices: np.ndarray, draws: np.ndarray | None) -> tuple[torch.Tensor, torch.Tensor]:
        """x_BCHW float32 in [0, 1], and a target of detection (B, M, 5); `draws` transform both alike."""
        rows = [self._rows[index] for index in indices]
        if draws is not None:
            pairs = zip(indices, rows, draws, strict=True)
            rows = [_augmented(self._images[index], own, draws_D) for index, own, draws_D in pairs]
        return self.images(indices, draws), packed(rows)

    def splits(self, settings: DataSettings) -> Splits:
        """All splits. UserError: an untrained class, or a split without boxes. Notes list splits judged by fewer classes."""
        splits, names = super().splits(settings), self.class_names[1:]
        for split, indices in splits.items():
            found = {int(label) for index in indices for label in self._rows[index][:, 0]}
            missing = [name for label, name in enumerate(names, 1) if label not in found]
            if missing and (split == "train" or len(missing) == len(names)):
                got = f"no box of {len(missing)} of {len(names)} classes in {split}: {first_of(missing)}"
                raise UserError(f"data '{settings.path}'", got, next_step="add images with boxes of each class")
            if missing:
                self.notes += (f"data: {split} has no box of {first_of(missing)}, and is judged by the other classes",)
        return splits


def _opened(image: AnnotatedImage) -> Image.Image:
    opened = Image.open(image.file)
    if opened.size != (image.width, image.height):
        got = f"{image.width} x {image.height} pixels, but '{image.file}' has {opened.width} x {opened.height}"
        opened.close()
        raise UserError(image.where, got, next_step="mend the annotation, or replace the image")
    return opened


def _rows(image: AnnotatedImage, class_names: Sequence[str]) -> Rows:
    numbers = {name: number for number, name in enumerate(class_names)}
    rows = [(numbers[name], *box) for name, box in zip(image.names, image.boxes, strict=True)]
    return np.array(rows, dtype=np.float32).reshape(-1, 5)


def _augmented(image: AnnotatedImage, rows_N5: Rows, draws_D: np.ndarray) -> Rows:
    """The boxes after the decoder's augmentation of the image."""
    top, left, height, width = random_box(image.height, image.width, draws_D)
    window = left / image.width, top / image.height, width / image.width, height / image.height
    inside_N5 = within(rows_N5, window, SEEN)
    return flipped(inside_N5) if draws_D[4] < 0.5 else inside_N5


CROWD = "around crowds (iscrowd), left out"


def coco(settings: DataSettings) -> BoxedPictures:
    """Pictures with COCO's annotations. UserError: missing or broken annotations with file and row, and missing images."""
    assert settings.path is not None
    left_out, declared = UnusedBoxes(), dict[str, None]()
    splits = {}
    for split, file in _files(settings.path).items():
        reader = _Reader(file, settings.path, left_out)
        splits[split] = list(reader.images())
        declared |= dict.fromkeys(reader.names.values())
    return BoxedPictures(settings, splits, left_out, list(declared))


def _files(root: Path) -> dict[str, Path]:
    """Annotation files by split."""
    folder = root / "annotations" if (root / "annotations").is_dir() else root
    files = sorted(folder.glob("*.json"))
    parts = {"train": "train", "val": "validation", "test": "test"}
    named = [(next((parts[part] for part in parts if part in file.stem.lower()), None), file) for file in files]
    found = {split: file for split, file in named if split is not None}
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
        try:
            self._content = json_of(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            got = f"no readable JSON ({error})"
            raise UserError(f"annotations '{file}'", got, next_step="export it again") from error
        if not isinstance(self._content, dict):
            raise UserError(f"annotations '{file}'", "no object", allowed="images, annotations and categories")
        categories = self._by_id("categories").items()
        self.names = {number: str(self._value(entry, "name", where)) for number, (where, entry) in categories}
        self._images = self._by_id("images")
        part = file.stem.removeprefix("instances_")
        self._folders = (root / part, root / "images" / part, root / "images", root)

    def images(self) -> Iterator[AnnotatedImage]:
        """Each image with its boxes, in the order of the file."""
        sizes = {
            number: sized(where, self._value(entry, "width", where), self._value(entry, "height", where))
            for number, (where, entry) in self._images.items()
        }
        objects: dict[int, list[tuple[str, Box]]] = {number: [] for number in self._images}
        for where, entry in self._entries("annotations"):
            image = self._known(entry, "image_id", self._images, where)
            category = self._known(entry, "category_id", self.names, where)
            if entry.get("iscrowd"):
                self._left_out.setdefault(CROWD, []).append(where)
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

    def _entries(self, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Place and content of each entry of a list."""
        entries = self._content.get(name)
        if not isinstance(entries, list):
            got, allowed = f"no list '{name}'", "images, annotations and categories"
            raise UserError(f"annotations '{self._file}'", got, allowed=allowed)
        for row, entry in enumerate(entries):
            where = f"annotations '{self._file}', {name}[{row}]"
            if not isinstance(entry, dict):
                raise UserError(where, f"{entry!r:.40}", allowed="an object")
            yield where, entry

    def _by_id(self, name: str) -> dict[int, tuple[str, dict[str, Any]]]:
        """Place and content of each entry by its id."""
        found: dict[int, tuple[str, dict[str, Any]]] = {}
        for where, entry in self._entries(name):
            number = self._value(entry, "id", where)
            if not isinstance(number, int):
                raise UserError(where, f"id is {number!r}", allowed="a whole number")
            if number in found:
                got = f"id {number} is that of {name}[{list(found).index(number)}]"
                raise UserError(where, got, allowed="each id once")
            found[number] = where, entry
        return found

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


DIFFICULT = "marked as difficult, left out"
SETS = {"train": "train", "validation": "val", "test": "test"}


def voc(settings: DataSettings) -> BoxedPictures:
    """Pictures with VOC's annotations. UserError: missing or broken annotations with file and object, and missing images."""
    assert settings.path is not None
    left_out = UnusedBoxes()
    names = dict(_names(settings.path))
    splits = {split: [_read(settings.path, name, left_out) for name in own] for split, own in names.items()}
    return BoxedPictures(settings, splits, left_out)


def _names(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Split -> names of its images, without suffix."""
    sets = root / "ImageSets" / "Main"
    if (sets / "train.txt").is_file():
        for split, name in SETS.items():
            if (sets / f"{name}.txt").is_file():
                lines = (sets / f"{name}.txt").read_text(encoding="utf-8").splitlines()
                yield split, [line.split()[0] for line in lines if line.strip()]
        return
    found = sorted(file.stem for file in (root / "Annotations").glob("*.xml"))
    if not found:
        raise UserError(
            f"data folder '{root}'",
            "no Annotations/*.xml",
            allowed="Annotations/*.xml and JPEGImages/*",
            next_step="choose another with data.path=FOLDER",
        )
    yield "train", found


def _read(root: Path, name: str, left_out: UnusedBoxes) -> AnnotatedImage:
    """An image with its boxes."""
    file = root / "Annotations" / f"{name}.xml"
    where = f"annotations '{file}'"
    try:
        tree = ElementTree.parse(file).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise UserError(where, f"no readable XML ({error})", next_step="export it again") from error
    size = sized(where, _text(tree, "size/width", where), _text(tree, "size/height", where))
    names, boxes = [], []
    for row, entry in enumerate(tree.iterfind("object"), start=1):
        place = f"{where}, object {row}"
        label = _text(entry, "name", place)
        if (entry.findtext("difficult") or "0").strip() == "1":
            left_out.setdefault(DIFFICULT, []).append(place)
            continue
        low = [_from_zero(_text(entry, f"bndbox/{edge}", place)) for edge in ("xmin", "ymin")]
        high = [_text(entry, f"bndbox/{edge}", place) for edge in ("xmax", "ymax")]
        if (box := share_of(place, (*low, *high), size, left_out)) is not None:
            names.append(label)
            boxes.append(box)
    picture = root / "JPEGImages" / (tree.findtext("filename") or f"{name}.jpg").strip()
    if not picture.is_file():
        raise UserError(where, f"there is no image '{picture}'", next_step="add it, or remove the annotation")
    return AnnotatedImage(
        file=picture, where=where, width=size[0], height=size[1], names=tuple(names), boxes=tuple(boxes)
    )


def _text(entry: Element, path: str, where: str) -> str:
    found = (entry.findtext(path) or "").strip()
    if not found:
        raise UserError(where, f"no '{path}'", next_step="mend the annotation")
    return found


def _from_zero(value: str) -> float | str:
    """The edge before a pixel that is counted from 1; text that is not a number is returned unchanged."""
    try:
        return float(value) - 1
    except ValueError:
        return value
