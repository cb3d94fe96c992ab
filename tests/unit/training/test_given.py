"""Networks that a run is given: their accuracy, and whether the data are those that they were made for."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import nn

import tailor_ir
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.data import DataSettings, load, load_splits
from tasks.data.dataset import DATA_FILE, remember, remembered
from tasks.data.problems import Tallied
from tasks.evaluation.models import ModelSettings
from tasks.evaluation.subnets import count_correct
from tasks.evaluation.subnets.record import BASE, CONFUSIONS_FILE, exchanged, read_confusions
from tasks.training import compile
from tasks.training.evaluate_given import evaluate_file, evaluate_supernet

DIGITS = DataSettings(kind="digits")


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=10).eval()


@pytest.fixture(scope="module")
def supernet(network: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made as by a run."""
    folder = tmp_path_factory.mktemp("made")
    compile.run(compile.Settings(), ModelSettings(name="test_resnet"), DIGITS, None, {}, folder, Silent())
    return folder / "supernet"


@pytest.mark.parametrize("batch", [1, 7, None])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_accuracy_of_a_file_is_that_of_its_network(batch: int | None, network: nn.Module, tmp_path: Path) -> None:
    axes: dict[str, Any] = {"dynamic_axes": {"x": {0: "batch"}}} if batch is None else {}
    sample = torch.zeros(batch or 1, 3, 32, 32)
    file = tmp_path / "net.onnx"
    torch.onnx.export(network, (sample,), file, dynamo=False, opset_version=17, input_names=["x"], **axes)
    found = evaluate_file(ModelSettings(kind="onnx", path=file), DIGITS, tmp_path, Silent())
    splits = load_splits(DIGITS)
    with torch.no_grad():
        for split in ("validation", "test"):
            expected = count_correct(network, splits[split].batches(64)).share
            assert found[f"{split}_accuracy"] == pytest.approx(expected, abs=0.004)  # one image of 300
    assert 0 < found["test_accuracy"] < 1
    line = read_confusions(tmp_path / CONFUSIONS_FILE)[BASE]
    right = sum(row[number] for number, row in enumerate(line["confusion"]))
    assert right / sum(map(sum, line["confusion"])) == found["test_accuracy"]


def _seen(confusion: list[list[int]]) -> Tallied:
    counts = np.array(confusion)
    return Tallied(counts.trace() / counts.sum(), 0.0, np.zeros(0, bool), counts)


ROTATED = _seen([[36, 0, 4, 0], [0, 3, 0, 37], [1, 0, 39, 0], [0, 31, 1, 8]])
"""Pages by their rotation, answered by a network that counts the other way round."""


def test_a_line_says_if_another_order_of_the_classes_would_be_far_better() -> None:
    def line(seen: Tallied, other: Tallied, names: str, order: tuple[int, ...] | None = None) -> str:
        found = exchanged({"validation": seen, "test": other}, names.split(), order, Silent())
        return found.get("exchanged", "")

    told = line(ROTATED, ROTATED, "000 090 180 270")
    assert told.startswith(
        "accuracy 53.8 % as the classes are ordered (000, 090, 180, 270), 89.4 % with 090 and 270 exchanged"
    )
    assert told.endswith("set data.class_order=[0,3,2,1]")
    assert line(ROTATED, ROTATED, "000 270 180 090", (0, 3, 2, 1)).endswith("=[0,1,2,3]"), "of the data's own numbers"
    right = _seen([[9, 1], [2, 8]])
    assert not line(right, right, "a b")
    assert not line(_seen([[1, 2], [2, 1]]), right, "a b"), "other samples do not agree"


def test_classes_are_numbered_as_the_outputs_of_the_network() -> None:
    order = (3, 1, 0, 2, 9, 8, 7, 4, 5, 6)
    plain, ordered = (load_splits(one)["test"] for one in (DIGITS, DIGITS.model_copy(update={"class_order": order})))
    assert ordered.class_names == tuple(plain.class_names[number] for number in order)
    for (x, target), (same, numbered) in zip(plain.batches(64), ordered.batches(64), strict=True):
        assert torch.equal(x, same)
        assert [order[number] for number in numbered.tolist()] == target.tolist()


@pytest.mark.parametrize("order", [(0, 1), (0,) * 10])
def test_an_order_has_each_class_once(order: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"data\.class_order.*for 10 classes.*each number from 0 to 9 once"):
        load_splits(DIGITS.model_copy(update={"class_order": order}))


def test_a_supernet_remembers_its_data(supernet: Path) -> None:
    known = remembered(supernet)
    assert known is not None
    assert known.class_names == tuple("0123456789")
    assert (known.channels, known.resolution, len(known.mean)) == (3, 32, 3)
    found = evaluate_supernet(supernet, DIGITS, 64)
    assert set(found) == {"version", "validation_samples", "test_samples"} | {
        f"{end}_{split}_accuracy" for end in ("largest", "smallest") for split in ("validation", "test")
    }


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"resolution": 64}, r"resolution 64; allowed: resolution 32, as the SuperNet in '.*' was made for"),
        ({"channels": 1, "mean": (0.5,)}, r"channels 1, mean \[0.5\], deviation .*; allowed: channels 3, mean \[0.485"),
        ({"deviation": (1.0, 1.0, 1.0)}, r"deviation \[1.0, 1.0, 1.0\]; allowed: deviation \[0.229"),
        (
            {"kind": "glyphs", "classes": 10, "images": 2000},
            r"10 classes \(.*\); allowed: 10 classes \(0, 1, 2, 3, 4, …\), as .*; give the data options of the run",
        ),
    ],
)
def test_other_data_than_a_supernet_was_made_for_are_refused(
    changed: dict[str, object], line: str, supernet: Path
) -> None:
    data = DataSettings.model_validate({**DIGITS.model_dump(), **changed})
    with pytest.raises(UserError, match=rf"^data '{data.title}': {line}"):
        evaluate_supernet(supernet, data, 64)


def test_of_a_supernet_that_no_run_made_the_shapes_are_compared(network: nn.Module, tmp_path: Path) -> None:
    tailor_ir.compile(network, torch.zeros(1, 3, 32, 32)).save(tmp_path / "own")
    assert remembered(tmp_path / "own") is None
    assert "largest_test_accuracy" in evaluate_supernet(tmp_path / "own", DIGITS, 64)
    larger = DIGITS.model_copy(update={"resolution": 48})
    with pytest.raises(
        UserError, match=r"supernet '.*own': takes 3x32x32; .* data's images; set data.resolution=32, or c"
    ):
        evaluate_supernet(tmp_path / "own", larger, 64)
    tailor_ir.compile(network, torch.zeros(1, 3, 32, 64)).save(tmp_path / "wide")
    with pytest.raises(UserError, match=r"takes 3x32x64; .*; compile it for 3x32x32: images of the data are square"):
        evaluate_supernet(tmp_path / "wide", DIGITS, 64)
    glyphs = DataSettings(kind="glyphs", classes=12, images=2000, resolution=32)
    with pytest.raises(UserError, match=r"supernet '.*own': gives 10 outputs; allowed: 12, the classes of the data"):
        evaluate_supernet(tmp_path / "own", glyphs, 64)


def test_a_damaged_description_is_one_line(tmp_path: Path) -> None:
    remember(load(DIGITS, "train"), tmp_path)
    (tmp_path / DATA_FILE).write_text('{"version": 1, "classes"')
    with pytest.raises(UserError, match=r"^file '.*data\.json': is no JSON .*; run the compile stage again"):
        remembered(tmp_path)


def test_a_description_of_the_first_version_is_read(tmp_path: Path) -> None:
    remember(load(DIGITS, "train"), tmp_path)
    known = remembered(tmp_path)
    assert known is not None
    content = known.to_json()
    assert content["version"] == 2
    first = {name: value for name, value in content.items() if name not in ("crop", "interpolation")}
    (tmp_path / DATA_FILE).write_text(json.dumps({**first, "version": 1}))
    assert remembered(tmp_path) == known.model_copy(update={"crop": None, "interpolation": None})
