"""A small detector through the whole pipeline: mAP in the report, boxes by its files, and a bundle that answers with boxes."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import adaptive_runtime
from adaptive_runtime.boxes import SSDLITE, Detections, detect, iou
from adaptive_runtime.bundles import OpenBundle
from flows.cli import main
from flows.progress import artifact_key
from tests.boxes import small_detectors
from tests.flows.conftest import Command
from tests.flows.prefect_server import own_rows
from tests.flows.tiny import TINY

SIDE = 32
OWN = (
    "model=callable",
    f"model.name={Path(small_detectors.__file__)}:ssdlite",
    "data=glyph_boxes",
    "data.classes=2",
    "data.images=240",
    f"data.resolution={SIDE}",
    "base.label_smoothing=0",
    "export.bundle=true",
)
WORDS = (*OWN, *(word for word in TINY if not word.startswith(("model.name", "data="))))


@pytest.fixture(scope="module")
def detected(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The report of a run, and its folder."""
    folder = tmp_path_factory.mktemp("detection") / "out"
    return Command(folder, WORDS)("run"), folder


@pytest.fixture(scope="module")
def bundle(detected: tuple[dict[str, Any], Path]) -> OpenBundle:
    return OpenBundle.open(detected[1] / "exports" / "onnxruntime" / "bundle")


def _same(found: Detections, wanted: Detections) -> bool:
    """Whether each box has one of its class, place and score on the other side."""
    overlaps = iou(found.boxes_N4, wanted.boxes_N4)
    near = np.abs(found.scores_N[:, None] - wanted.scores_N[None]) < 1e-4
    pairs = (overlaps > 0.99) & near & (found.classes_N[:, None] == wanted.classes_N[None])
    return len(found.scores_N) == len(wanted.scores_N) and bool(pairs.any(1).all() and pairs.any(0).all())


def test_the_report_says_map_where_others_say_accuracy(detected: tuple[dict[str, Any], Path]) -> None:
    report, folder = detected
    (device,) = report["devices"]
    assert (report["problem"], report["score"]) == ("detection_ssdlite", "mAP@0.5")
    assert all(0 <= row["accuracy"] <= 1 for row in device["winners"])
    assert 0 < device["decoding_ms"][0] <= device["decoding_ms"][1]
    assert any(card["note"].startswith("test mAP@0.5, ") for card in report["headline"])
    page = (folder / "report.html").read_text()
    words = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "<th>test mAP@0.5</th><th>predicted mAP@0.5</th>" in words
    assert "of the network alone, without decoding and non-maximum suppression, which takes" in words
    assert "data:image/png;base64," in words
    assert "test accuracy" not in words


def test_pages_of_prefect_name_the_score_in_the_place_of_accuracy(detected: tuple[dict[str, Any], Path]) -> None:
    report, folder = detected
    keys = [artifact_key("winners", report["devices"][0]["name"]), artifact_key("report", "pipeline")]
    latest = {row["key"]: row["data"] for row in own_rows("artifacts/latest", artifacts={"key": {"any_": keys}})}
    winners, page = (latest[key] for key in keys)
    assert str(folder) in page
    assert "| test mAP@0.5 |" in page
    names = set(json.loads(winners)[0])
    assert {"predicted mAP@0.5", "validation mAP@0.5", "test mAP@0.5"} <= names
    assert not [text for text in (page, winners) if "accuracy" in text]


def test_exported_files_give_the_boxes_of_the_network(
    detected: tuple[dict[str, Any], Path], bundle: OpenBundle
) -> None:
    folder = detected[1] / "exports" / "onnxruntime"
    sample = bundle.calibration()
    assert sample is not None
    told = (json.loads(file.read_text()) for file in folder.glob("*.json"))
    cards = {card["digest"]: card for card in told if "input_shape" in card}
    assert cards.keys() == bundle.manifest.by_digest.keys()
    for card in cards.values():
        assert card["decoding"]["head"] == "ssdlite"
        size = tuple(card["input_shape"][-2:])
        images, expected = sample.inputs[tuple(card["input_shape"][1:])], sample.answers[card["digest"], None]
        file = next(folder.glob(f"*-{card['digest'][:8]}.onnx"))
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        (given,) = session.get_inputs()
        raw = np.concatenate([session.run(None, {given.name: image[None]})[0] for image in images])
        assert all(map(_same, detect(SSDLITE, raw, size), detect(SSDLITE, expected, size)))


def test_a_bundle_answers_with_boxes_in_pixels_of_the_images(bundle: OpenBundle) -> None:
    sample = bundle.calibration()
    assert sample is not None
    images = sample.inputs[3, SIDE, SIDE]
    with adaptive_runtime.load(bundle.folder, prepares=False) as model:
        assert max(adaptive_runtime.check(model).values()) < 1e-4
        for subnet in bundle.manifest.subnets:
            model.use(subnet.digest)
            answer = model.infer(images)
            assert answer.detections is not None
            if subnet.input_shape[-1] == SIDE:
                assert all(
                    map(_same, answer.detections, detect(SSDLITE, sample.answers[subnet.digest, None], (SIDE, SIDE)))
                )
            for found in answer.detections:
                assert found.boxes_N4.min() >= 0
                assert SIDE / 2 < found.boxes_N4.max() <= SIDE


def test_stress_refuses_a_detector_in_one_line(
    detected: tuple[dict[str, Any], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stress", "onnxruntime", f"output_dir={detected[1]}"]) == 2
    assert "is for detection_ssdlite; stress compares classes of images" in capsys.readouterr().err
