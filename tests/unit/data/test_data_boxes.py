"""Boxes in COCO's JSON and in Pascal VOC's XML: read as they are, and broken in the ways annotations are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tasks.base.errors import UserError
from tasks.data import DataSettings, load_splits, open_source
from tasks.data.boxes import BoxedPictures, coco
from tasks.data.problems.detection import ABSENT

WIDTH, HEIGHT = 40, 30
COLOURS = {"red square": (0, 200), "green bar": (1, 200)}
"""Channel and brightness of what is drawn in a box of each class, on black."""
Objects = list[tuple[str, tuple[int, int, int, int]]]
"""Class and box (x0, y0, x1, y1) [px]."""


def objects_of(number: int) -> Objects:
    """Of image `number`; every fifth has none."""
    if number % 5 == 4:
        return []
    left = 2 + number % 3
    found: Objects = [("red square", (left, 4, left + 12, 16))]
    return [*found, ("green bar", (20, 18, 38, 24))] if number % 2 else found


def draw(file: Path, objects: Objects) -> None:
    pixels = np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8)
    for name, (x0, y0, x1, y1) in objects:
        channel, value = COLOURS[name]
        pixels[y0:y1, x0:x1, channel] = value
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)


def write_coco(root: Path, count: int = 60) -> dict[str, Any]:
    """Images, and the content of their annotations, which is written too."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(count):
        draw(root / "images" / f"{number}.png", objects_of(number))
        images.append({"id": number, "file_name": f"{number}.png", "width": WIDTH, "height": HEIGHT})
        for name, (x0, y0, x1, y1) in objects_of(number):
            box = [x0, y0, x1 - x0, y1 - y0]
            annotations.append(
                {"id": len(annotations), "image_id": number, "category_id": 7 if "red" in name else 3, "bbox": box}
            )
    categories = [{"id": 3, "name": "green bar"}, {"id": 7, "name": "red square"}, {"id": 9, "name": "unused"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    rewrite(root, content)
    return content


def rewrite(root: Path, content: dict[str, Any]) -> None:
    (root / "all.json").write_text(json.dumps(content))


def write_voc(root: Path, count: int = 60) -> None:
    (root / "Annotations").mkdir(parents=True)
    for number in range(count):
        draw(root / "JPEGImages" / f"{number}.png", objects_of(number))
        objects = "".join(
            f"<object><name>{name}</name><difficult>0</difficult><bndbox><xmin>{x0 + 1}</xmin><ymin>{y0 + 1}</ymin>"
            f"<xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object>"
            for name, (x0, y0, x1, y1) in objects_of(number)
        )
        size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height></size>"
        (root / "Annotations" / f"{number}.xml").write_text(
            f"<annotation><filename>{number}.png</filename>{size}{objects}</annotation>"
        )


def settings(kind: str, path: Path, **options: object) -> DataSettings:
    told = {"kind": kind, "path": path, "resolution": 40, "mean": (0.0,), "deviation": (1.0,), **options}
    return DataSettings.model_validate(told)


def brightness(x_CHW: torch.Tensor, row_5: torch.Tensor) -> tuple[float, float]:
    """Of the channel of a box's class: inside of the box, shrunk by a pixel, and the mean of the image's other pixels."""
    x0, y0, x1, y1 = (row_5[1:] * x_CHW.shape[-1]).tolist()
    inside = torch.zeros_like(x_CHW[0], dtype=torch.bool)
    inside[round(y0) + 1 : round(y1) - 1, round(x0) + 1 : round(x1) - 1] = True
    outside = torch.ones_like(inside)
    outside[max(0, round(y0) - 1) : round(y1) + 1, max(0, round(x0) - 1) : round(x1) + 1] = False
    channel_HW = x_CHW[1 if row_5[0] == 1 else 0]
    return float(channel_HW[inside].mean()), float(channel_HW[outside].mean())


@pytest.mark.parametrize(("kind", "write"), [("coco", write_coco), ("voc", write_voc)])
def test_boxes_are_around_their_objects_also_in_augmented_images(
    kind: str, write: Callable[[Path], object], tmp_path: Path
) -> None:
    write(tmp_path)
    splits = load_splits(settings(kind, tmp_path))
    assert splits["train"].class_names == ("background", "green bar", "red square")
    assert splits["train"].problem.name == "detection_ssdlite"
    assert sum(map(len, splits.values())) == 60
    for seed in (None, 0):
        x_BCHW, target_BM5 = next(splits["train"].batches(30, seed=seed))
        rows = [(x, row) for x, rows in zip(x_BCHW, target_BM5, strict=True) for row in rows if row[0] > ABSENT]
        assert len(rows) > 15
        assert (target_BM5[:, 0, 0] == ABSENT).any(), "images without boxes are among them"
        wide = [row for row in rows if float((row[1][3:] - row[1][1:3]).min()) > 0.2]
        found = np.array([brightness(*pair) for pair in wide])
        assert found[:, 0].min() > 0.5
        assert found[:, 1].max() < 0.1


def test_boxes_that_cannot_be_used_are_left_out_and_told(tmp_path: Path) -> None:
    content = write_coco(tmp_path)
    for box, crowd in (([5, 5, 0, 4], 0), ([50, 2, 9, 9], 0), ([30, 20, 15, 5], 0), ([1, 1, 5, 5], 1)):
        content["annotations"].append({"image_id": 4, "category_id": 3, "bbox": box, "iscrowd": crowd})
    rewrite(tmp_path, content)
    source, splits = open_source(settings("coco", tmp_path))
    assert isinstance(source, BoxedPictures)
    reasons = ("without area, left out", "outside of their image, left out", "cut at the edge of their image",
               "around crowds (iscrowd), left out")  # fmt: skip
    told = [
        f"data: 1 box {reason} (first: annotations '{tmp_path / 'all.json'}', annotations[{row}])"
        for row, reason in enumerate(reasons, start=len(content["annotations"]) - 4)
    ]
    assert list(source.notes) == [*told, "data: 1 of 3 classes have no box and are left out (unused)"]
    _, target_BM5 = source.boxed(np.array([4]), None)
    assert target_BM5[0].tolist() == [pytest.approx([1, 30 / WIDTH, 20 / HEIGHT, 1, 25 / HEIGHT])]
    assert set(splits) == {"train", "validation", "test"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("categories"), r"all\.json': no list 'categories'; allowed: images, annotations and categories"),
        (lambda c: c["annotations"][2].pop("bbox"), r"annotations\[2\]: no 'bbox'; mend"),
        (lambda c: c["annotations"][2].update(bbox=[1, 2, 3]), r"annotations\[2\]: bbox is \[1, 2, 3\]; allowed: \[x, y"),
        (lambda c: c["annotations"][2].update(bbox=[1, 2, 3, float("nan")]), r"annotations\[2\]: bottom is nan; allowed: a"),
        (lambda c: c["annotations"][3].update(category_id=8), r"annotations\[3\]: category_id 8 is no id of the file"),
        (lambda c: c["annotations"][3].update(image_id="5"), r"annotations\[3\]: image_id '5' is no id of the file"),
        (lambda c: c["images"][1].update(id=0), r"images\[1\]: id 0 is that of images\[0\]; allowed: each id once"),
        (lambda c: c["images"][1].update(width=0), r"images\[1\]: an image of 0 x 30 pixels; allowed: whole numbers from 1"),
        (lambda c: c["images"][1].update(file_name="no.png"), r"images\[1\]: there is no image 'no\.png'; allowed: in "),
        (lambda c: c["annotations"].clear(), "60 images without any box; choose another"),
        (lambda c: c["images"].append(5), r"images\[60\]: 5; allowed: an object"),
    ],
)  # fmt: skip
def test_broken_annotations_of_coco_are_one_line_with_file_and_row(
    change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    content = write_coco(tmp_path, 60)
    change(content)
    rewrite(tmp_path, content)
    with pytest.raises(UserError, match=message):
        load_splits(settings("coco", tmp_path))


def test_an_image_of_another_size_than_its_annotations_say_is_one_line(tmp_path: Path) -> None:
    content = write_coco(tmp_path)
    content["images"][0].update(width=80)
    rewrite(tmp_path, content)
    source = coco(settings("coco", tmp_path))
    with pytest.raises(
        UserError, match=r"images\[0\]: 80 x 30 pixels, but '.*0\.png' has 40 x 30; mend the annotation"
    ):
        source.boxed(np.array([0]), None)


@pytest.mark.parametrize("content", [b"", b"no picture"])
def test_an_empty_or_broken_image_is_told_with_the_row_of_its_annotation(content: bytes, tmp_path: Path) -> None:
    write_coco(tmp_path)
    source = coco(settings("coco", tmp_path))
    (file,) = tmp_path.rglob("3.png")
    file.write_bytes(content)
    with pytest.raises(
        UserError, match=r"image '.*3\.png' of annotations '.*all\.json', images\[3\]: cannot be decoded"
    ):
        source.boxed(np.array([3]), None)


def test_a_file_for_each_split_is_used_as_it_is(tmp_path: Path) -> None:
    content = write_coco(tmp_path)
    (tmp_path / "all.json").unlink()
    for name, numbers in (("train2017", range(30)), ("val2017", range(30, 60))):
        own = {"images": [content["images"][number] for number in numbers], "categories": content["categories"],
               "annotations": [one for one in content["annotations"] if one["image_id"] in numbers]}  # fmt: skip
        (tmp_path / "annotations").mkdir(exist_ok=True)
        (tmp_path / "annotations" / f"instances_{name}.json").write_text(json.dumps(own))
    splits = load_splits(settings("coco", tmp_path))
    assert {name: len(split) for name, split in splits.items()} == {"train": 25, "validation": 30, "test": 5}
    (tmp_path / "annotations" / "notes.json").write_text("{}")
    with pytest.raises(
        UserError, match=r"3 JSON files \(instances_train2017\.json.*; allowed: one, or one for each split"
    ):
        load_splits(settings("coco", tmp_path))


def test_a_class_that_no_training_image_has_is_one_line(tmp_path: Path) -> None:
    write_voc(tmp_path)
    sets = tmp_path / "ImageSets" / "Main"
    sets.mkdir(parents=True)
    (sets / "train.txt").write_text("\n".join(str(number) for number in range(0, 60, 2)))
    (sets / "val.txt").write_text("\n".join(str(number) for number in range(1, 60, 2)))
    with pytest.raises(UserError, match="no box of 1 of 2 classes in train: green bar; add images"):
        load_splits(settings("voc", tmp_path))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<xmin>3</xmin>", "<xmin>left</xmin>", r"0\.xml', object 1: left is 'left'; allowed: a number"),
        ("<xmin>3</xmin>", "", r"0\.xml', object 1: no 'bndbox/xmin'; mend"),
        ("<name>red square</name>", "<name> </name>", r"0\.xml', object 1: no 'name'"),
        ("</annotation>", "", r"0\.xml': no readable XML \(no element found"),
        ("0.png", "none.png", r"0\.xml': there is no image '.*none\.png'; add it, or remove"),
        ("<width>40</width>", "<width>wide</width>", r"0\.xml': width is 'wide'; allowed: a number"),
    ],
)
def test_broken_annotations_of_voc_are_one_line_with_file_and_object(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    write_voc(tmp_path, 12)
    file = tmp_path / "Annotations" / "0.xml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(UserError, match=message):
        load_splits(settings("voc", tmp_path))


def test_objects_that_are_marked_as_difficult_are_left_out_and_told(tmp_path: Path) -> None:
    write_voc(tmp_path)
    file = tmp_path / "Annotations" / "0.xml"
    file.write_text(file.read_text().replace("<difficult>0", "<difficult>1"))
    notes = load_splits(settings("voc", tmp_path))["train"].notes
    assert notes == (f"data: 1 box marked as difficult, left out (first: annotations '{file}', object 1)",)


def test_a_head_is_for_data_with_boxes_alone() -> None:
    with pytest.raises(ValueError, match=r"data\.head=fcos is for data\.kind=glyph_boxes, coco, voc, not glyphs"):
        DataSettings(kind="glyphs", head="fcos")
    with pytest.raises(ValueError, match=r"data\.kind=glyph_boxes needs data\.head=ssdlite, retinanet or fcos"):
        DataSettings(kind="glyph_boxes", head=None)
    assert DataSettings(kind="glyph_boxes").problem == "detection_ssdlite"
    assert DataSettings(kind="coco", path=Path("here"), head="fcos").problem == "detection_fcos"
