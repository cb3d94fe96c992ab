"""A small detector through the whole pipeline: mAP in the report, boxes by its files, and a bundle that answers with boxes."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime
import pytest

import adaptive_runtime
from adaptive_runtime.bundle.bundles import BundleFormat, OpenBundle
from adaptive_runtime.samples.boxes import SSDLITE, Detections, detect, iou
from flows.cli import main
from flows.pipeline.progress import artifact_key
from tests.support.boxes import small_detectors
from tests.support.deploy.deployments import stopped_at_the_end
from tests.support.flows.bundled import check_subnets
from tests.support.flows.fixtures import Command
from tests.support.flows.prefect_server import own_rows
from tests.support.flows.tiny import FEW, TINY
from tests.support.runtime.service_process import INFER, body

SIDE = 32
NAMES = ("boxes", "scores", "classes")
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
OTHER = ("device=[onnxruntime,ncnn]", "export.formats=[onnx,ncnn]")
WORDS = (
    *OWN,
    *OTHER,
    *(word for word in TINY if not word.startswith(("model.name", "data=", "device=", "export.formats="))),
    FEW,
)
FORMATS: dict[str, BundleFormat] = {"onnxruntime": "onnx", "ncnn": "ncnn"}
"""Of the files that a device runs, by its name."""


@pytest.fixture(scope="module")
def detected(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The report of a run, and its folder."""
    folder = tmp_path_factory.mktemp("detection") / "out"
    return Command(folder, WORDS)("run"), folder


@pytest.fixture(scope="module", params=FORMATS)
def device(request: pytest.FixtureRequest) -> str:
    """A device of the run."""
    return str(request.param)


@pytest.fixture(scope="module")
def bundle(detected: tuple[dict[str, Any], Path], device: str) -> OpenBundle:
    return OpenBundle.open(detected[1] / "exports" / device / "bundle")


def _same(found: Detections, wanted: Detections) -> bool:
    """Whether each box has one of its class, place and score on the other side."""
    overlaps = iou(found.boxes_N4, wanted.boxes_N4)
    near = np.abs(found.scores_N[:, None] - wanted.scores_N[None]) < 1e-4
    pairs = (overlaps > 0.99) & near & (found.classes_N[:, None] == wanted.classes_N[None])
    return len(found.scores_N) == len(wanted.scores_N) and bool(pairs.any(1).all() and pairs.any(0).all())


def test_the_report_says_map_where_others_say_accuracy(detected: tuple[dict[str, Any], Path]) -> None:
    report, folder = detected
    assert (report["problem"], report["score"]) == ("detection_ssdlite", "mAP@0.5")
    assert [device["name"] for device in report["devices"]] == list(FORMATS)
    for device in report["devices"]:
        assert all(0 <= row["accuracy"] <= 1 for row in device["winners"])
        assert all(not row["reason"] and row["max_difference"] < 1e-4 for row in device["winners"])
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
    rows = own_rows("artifacts", artifacts={"key": {"any_": keys}})  # runs of other tests have artifacts of these names
    told = next(row for row in rows if row["key"] == keys[1] and str(folder) in row["data"])
    own = [row for row in rows if row["key"] == keys[0] and row["flow_run_id"] == told["flow_run_id"]]
    page, winners = told["data"], max(own, key=lambda row: str(row["created"]))["data"]
    assert "| test mAP@0.5 |" in page
    names = set(json.loads(winners)[0])
    assert {"predicted mAP@0.5", "validation mAP@0.5", "test mAP@0.5"} <= names
    assert not [text for text in (page, winners) if "accuracy" in text]


def test_exported_files_give_the_boxes_of_the_network(
    detected: tuple[dict[str, Any], Path], bundle: OpenBundle, device: str
) -> None:
    folder = detected[1] / "exports" / device
    sample = bundle.calibration()
    assert sample is not None
    told = (json.loads(file.read_text()) for file in folder.glob("*.json"))
    cards = {card["digest"]: card for card in told if "input_shape" in card}
    assert cards.keys() == check_subnets(detected[1], device, bundle)
    for card in cards.values():
        assert card["decoding"]["head"] == "ssdlite"
        size = tuple(card["input_shape"][-2:])
        images, expected = sample.inputs[tuple(card["input_shape"][1:])], sample.answers[card["digest"], None]
        file = next(folder.glob(f"*-{card['digest'][:8]}.onnx"))
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        (given,) = session.get_inputs()
        raw = np.concatenate([session.run(None, {given.name: image[None]})[0] for image in images])
        assert all(map(_same, detect(SSDLITE, raw, size), detect(SSDLITE, expected, size)))


def test_a_bundle_answers_with_boxes_in_pixels_of_the_images(bundle: OpenBundle, device: str) -> None:
    sample = bundle.calibration()
    assert sample is not None
    images = sample.inputs[3, SIDE, SIDE]
    with adaptive_runtime.load(bundle.folder, format=FORMATS[device], prepares=False) as model:
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


def test_a_deployed_detector_answers_with_boxes(detected: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    there, output, device = tmp_path / "there", detected[1], "ncnn"
    bundle = OpenBundle.open(output / "exports" / device / "bundle")
    sample = bundle.calibration()
    assert sample is not None
    words = [
        f"output_dir={output}",
        f"deploy.folder={there}",
        "deploy.install=unpack",
        f"deploy.python={sys.executable}",
    ]
    with stopped_at_the_end(there):
        found = tmp_path / "found.json"
        assert main(["deploy", device, *words, "deploy.port=0", "--json", str(found)]) == 0
        address = json.loads(found.read_text())["address"]
        token = (there / "token").read_text().strip()
        with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=300) as http:
            answer = http.post(INFER, **body(sample.inputs[3, SIDE, SIDE])).raise_for_status().json()
    outputs = {one["name"]: np.array(one["data"]).reshape(one["shape"]) for one in answer["outputs"]}
    with adaptive_runtime.load(bundle.folder, format=FORMATS[device], prepares=False) as model:
        model.use(answer["parameters"]["subnet"])
        wanted = model.infer(sample.inputs[3, SIDE, SIDE]).detections
    assert wanted is not None
    for boxes_M4, scores_M, classes_M, own in zip(*(outputs[name] for name in NAMES), wanted, strict=True):
        told = classes_M >= 0
        assert _same(Detections(boxes_N4=boxes_M4[told], scores_N=scores_M[told], classes_N=classes_M[told]), own)
