"""Pascal VOC's XML: PATH/Annotations/*.xml with PATH/JPEGImages/*; splits from PATH/ImageSets/Main/*.txt, or by shares.

Source: The PASCAL Visual Object Classes Challenge (IJCV 2010). Corners are pixels counted from 1, both inside the box.
"""

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np

from tasks.base.errors import UserError
from tasks.data.boxes.annotated import AnnotatedImage, UnusedBoxes, share_of, sized
from tasks.data.boxes.pictures import BoxedPictures, opened_source
from tasks.data.settings import DataSettings

DIFFICULT = "marked as difficult, left out"
SETS = {"train": "train", "validation": "val", "test": "test"}


def open_voc(settings: DataSettings) -> tuple[BoxedPictures, dict[str, np.ndarray]]:
    """The source and its splits. UserError: missing or broken annotations with file and object, and missing images."""
    assert settings.path is not None
    left_out = UnusedBoxes()
    names = dict(_names(settings.path))
    splits = {split: [_read(settings.path, name, left_out) for name in own] for split, own in names.items()}
    return opened_source(settings, splits, left_out, [])


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
            left_out.add(DIFFICULT, place)
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
