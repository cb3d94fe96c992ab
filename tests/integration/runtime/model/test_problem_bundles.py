"""Bundles of a detector, a segmenter and a network that enlarges: boxes, masks and images, in Python and by HTTP."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import adaptive_runtime
import tailor_ir
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import BUNDLE_FILE, BundleManifest, OpenBundle
from adaptive_runtime.model.answers import DECODERS, SEGMENTATION, SEVERAL_CLASSES
from adaptive_runtime.samples.boxes import SSDLITE, detect
from adaptive_runtime.server.protocol import NOTHING, InferenceFormat, read, written
from conf.networks import restoration
from tasks.data.problems import CLASSIFICATION, PROBLEMS, SUPER_RESOLUTION
from tasks.data.problems import SEGMENTATION as SEGMENTATION_RECORD
from tests.support.boxes.small_detectors import ssdlite
from tests.support.problems.small_fpn import network
from tests.support.runtime.bundled import write_plain_bundle

SIDE, SMALLER, CLASSES, SAMPLES = 32, 24, 3, 3
Written = tuple[OpenBundle, str, str]
"""A bundle with the digests of its SubNets, of images of `SIDE` and of `SMALLER` pixels."""


def _bundle(folder: Path, make: Callable[[int, int], nn.Module], problem: str) -> Written:
    torch.manual_seed(0)
    space: dict[str, list[int | float]] = {"resolution": [SMALLER, SIDE], "*.width_mult": [0.5, 1]}
    net = tailor_ir.compile(make(CLASSES, 3).eval(), torch.zeros(1, 3, SIDE, SIDE), space)
    manifest = write_plain_bundle(net, [net.max_config, net.min_config], folder, samples=SAMPLES)
    (folder / BUNDLE_FILE).write_text(manifest.model_copy(update={"problem": problem}).to_json())
    return OpenBundle.open(folder), net.space.digest(net.max_config), net.space.digest(net.min_config)


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return _bundle(tmp_path_factory.mktemp("detector"), ssdlite, "detection_ssdlite")


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return _bundle(tmp_path_factory.mktemp("segmenter"), network, SEGMENTATION)


def _images(bundle: OpenBundle, side: int = SIDE) -> np.ndarray:
    sample = bundle.calibration()
    assert sample is not None
    return sample.inputs[3, side, side]


def _raw(bundle: OpenBundle, digest: str) -> np.ndarray:
    """What torch gives for the images of the SubNet's own size."""
    sample = bundle.calibration()
    assert sample is not None
    return sample.answers[digest, None]


def test_a_detector_answers_with_the_boxes_of_its_raw_output(detector: Written) -> None:
    bundle, largest, smallest = detector
    with adaptive_runtime.load(bundle.folder, prepares=False) as model:
        assert max(adaptive_runtime.check(model).values()) < 1e-4
        model.use(largest)
        answer = model.infer(_images(bundle))
        assert answer.subnets == (largest,) * SAMPLES
        assert answer.logits.shape == (SAMPLES, 0)
        for found, wanted in zip(
            answer.detections or (), detect(SSDLITE, _raw(bundle, largest), (SIDE, SIDE)), strict=True
        ):
            np.testing.assert_allclose(found.scores_N, wanted.scores_N, atol=1e-5)
            best = found.scores_N > wanted.scores_N[5]
            np.testing.assert_allclose(found.boxes_N4[best], wanted.boxes_N4[best], atol=1e-3)
        model.use(smallest)
        answer = model.infer(_images(bundle))
        assert answer.detections is not None
        assert max(found.boxes_N4.max() for found in answer.detections) == pytest.approx(SIDE, abs=1e-3)
        assert len(answer.detections) == SAMPLES


def test_a_segmenter_answers_with_the_class_of_each_pixel(segmenter: Written) -> None:
    bundle, largest, smallest = segmenter
    with adaptive_runtime.load(bundle.folder, prepares=False) as model:
        assert max(adaptive_runtime.check(model).values()) < 1e-4
        model.use(largest)
        answer = model.infer(_images(bundle))
        wanted = SEGMENTATION_RECORD.decoded(torch.from_numpy(_raw(bundle, largest)), (SIDE, SIDE)).numpy()
        assert answer.detections is None
        assert answer.masks is not None
        assert answer.masks.shape == wanted.shape == (SAMPLES, SIDE, SIDE)
        assert (answer.masks == wanted).mean() > 0.999
        assert len(np.unique(wanted)) > 1
        model.use(smallest)
        masks = model.infer(_images(bundle)).masks
        assert masks is not None
        assert masks.shape == (SAMPLES, SIDE, SIDE)


def test_super_resolution_answers_with_larger_images_whatever_a_subnet_takes(tmp_path: Path) -> None:
    problem = SUPER_RESOLUTION[2]
    bundle, largest, smallest = made = _bundle(tmp_path, restoration.super_resolution, problem.name)
    with adaptive_runtime.load(bundle.folder, prepares=False) as model:
        model.use(largest)
        images = model.infer(_images(bundle)).images
        wanted = problem.decoded(torch.from_numpy(_raw(bundle, largest)), (SIDE, SIDE)).numpy()
        assert images is not None
        assert images.shape == (SAMPLES, 3, 2 * SIDE, 2 * SIDE)
        np.testing.assert_allclose(images, wanted, atol=1e-5)
        model.use(smallest)
        small = model.infer(_images(bundle)).images
        assert small is not None
        assert small.shape == images.shape
        assert np.abs(small - images).max() > 1e-3
    told, form = _told(made)
    assert form.outputs == {"images": [-1, 3, 2 * SIDE, 2 * SIDE]}
    assert [(one["name"], one["shape"]) for one in told["outputs"]] == [("images", [SAMPLES, 3, 2 * SIDE, 2 * SIDE])]


def test_devices_know_each_problem_whose_raw_outputs_are_no_classes_of_samples() -> None:
    assert {record.name for record in PROBLEMS} == {CLASSIFICATION.name, SEVERAL_CLASSES, *DECODERS}


def test_by_http_images_with_fewer_boxes_are_filled_up(detector: Written) -> None:
    told, form = _told(detector)
    bundle, largest, _ = detector
    assert [one["name"] for one in told["outputs"]] == ["boxes", "scores", "classes"]
    boxes, scores, classes = (np.reshape(one["data"], one["shape"]) for one in told["outputs"])
    metadata = form.metadata("model", "1")["outputs"]
    assert [(one["name"], one["shape"]) for one in metadata] == list(form.outputs.items())
    with adaptive_runtime.load(bundle.folder, prepares=False) as model:
        model.use(largest)
        detections = model.infer(_images(bundle)).detections
    assert detections is not None
    for row, found in enumerate(detections):
        count = len(found.scores_N)
        np.testing.assert_array_equal(classes[row, :count], found.classes_N)
        np.testing.assert_array_equal(boxes[row, :count].astype(np.float32), found.boxes_N4)
        assert (classes[row, count:] == NOTHING).all()
        assert not scores[row, count:].any()


def test_by_http_a_segmenter_gives_classes_of_pixels(segmenter: Written) -> None:
    told, form = _told(segmenter)
    assert form.outputs == {"classes": [-1, SIDE, SIDE]}
    assert [(one["name"], one["shape"]) for one in told["outputs"]] == [("classes", [SAMPLES, SIDE, SIDE])]


def _told(of: Written) -> tuple[dict[str, Any], InferenceFormat]:
    """The answer to the sample's images as a client gets it, and what the service says of itself."""
    bundle, largest, _ = of
    images = _images(bundle)
    tensor = {"name": "input", "shape": list(images.shape), "datatype": "FP32", "data": images.ravel().tolist()}
    with adaptive_runtime.load(bundle.folder, prepares=False) as model:
        model.use(largest)
        form = InferenceFormat.of(model)
        request = read(json.dumps({"inputs": [tensor]}).encode(), None, form)
        content = written(request.message, model.infer(images), 0.0, 0.0, model=("model", "1")).content
    return json.loads(content), form


def test_a_problem_that_this_run_time_does_not_know_is_one_line(detector: Written, tmp_path: Path) -> None:
    bundle, *_ = detector
    for file in bundle.folder.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    manifest = BundleManifest.from_json((tmp_path / BUNDLE_FILE).read_text(), BUNDLE_FILE)
    (tmp_path / BUNDLE_FILE).write_text(manifest.model_copy(update={"problem": "poses"}).to_json())
    with pytest.raises(AdaptiveError, match="problem 'poses'; allowed: several_classes, segmentation, "):
        adaptive_runtime.load(tmp_path, prepares=False)


def test_the_manifest_of_a_classifier_does_not_name_a_problem(detector: Written) -> None:
    manifest = detector[0].manifest
    assert '"problem": "detection_ssdlite"' in manifest.to_json()
    assert "problem" not in manifest.model_copy(update={"problem": None}).to_json()
