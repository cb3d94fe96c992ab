"""Files that version 0.16 wrote still load, and answer as they did.

They were made by that version from a small network of these tests: `SuperNet.save`, and a bundle with two SubNets.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import adaptive_runtime
import tailor_ir
from adaptive_runtime.base.files import Message
from adaptive_runtime.bundle.bundles.subnets import BundledPlacement
from adaptive_runtime.bundle.chains.manifest import PartsManifest, PartTensor, SubnetPart
from adaptive_runtime.offload.split import COORDINATOR, LinkUse, PlacementPlans, PlannedPlacement

FILES = Path(__file__).parent / "version_0_16"
ANSWERS = json.loads((FILES / "answers.json").read_text())
"""The logits of the elastic network of 0.16 for two images, by exit."""


@pytest.fixture
def images_BCHW() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((2, 3, 16, 16), np.float32)


@pytest.mark.parametrize("exit", ["stage.1.block.1", "last"])
def test_a_supernet_of_an_earlier_version_answers_as_it_did(exit: str, images_BCHW: np.ndarray) -> None:
    net = tailor_ir.load(FILES / "supernet")  # this version also finds a width that 0.16 did not offer
    net.elastic.eval().activate(net.space.canonical({**net.max_config, "exit": exit}))
    with torch.no_grad():
        found = net.elastic(torch.from_numpy(images_BCHW))
    np.testing.assert_allclose(found.numpy(), ANSWERS[exit], rtol=1e-5, atol=1e-6)


def test_a_bundle_of_an_earlier_version_answers_as_its_network(images_BCHW: np.ndarray) -> None:
    with adaptive_runtime.load(FILES / "bundle", prepares=False) as model:
        assert len(model.subnets) == 2
        found = model.infer(images_BCHW)
    np.testing.assert_allclose(found.logits, ANSWERS["last"], rtol=1e-4, atol=1e-5)


VALUE = PartTensor(name="x", shape=(1, 3))
OVER_DEVICES: list[Message] = [
    PlacementPlans(
        digest="0" * 64,
        peers=("server",),
        coordinator_ms=(1.0, 2.0),
        bandwidth_mbps=(1.0, 100.0),
        slow_down=(1.0, 4.0),
        plans=(
            PlannedPlacement(devices=(COORDINATOR, COORDINATOR), coordinator_ms=3.0, others_ms=0.0),
            PlannedPlacement(
                devices=(COORDINATOR, "server"),
                coordinator_ms=1.0,
                others_ms=0.5,
                links={"server": LinkUse(messages=1, up_bytes=10, down_bytes=4)},
            ),
        ),
    ),
    BundledPlacement(
        segments="a.segments.json",
        plans="a.plans.json",
        files=("a.onnx",),
        devices=("server",),
        bandwidth_mbps=10.0,
        latency_ms=5.0,
        coordinator_share=0.5,
    ),
    PartsManifest(
        digest="a",
        files={"0.onnx": "0" * 64},
        coordinator="phone",
        input=VALUE,
        outputs=(VALUE,),
        parts=(SubnetPart(file="0.onnx", device="phone", inputs=(VALUE,), outputs=(VALUE,), operators=1, macs=1),),
        difference=0.0,
    ),
]


@pytest.mark.parametrize("now", OVER_DEVICES, ids=lambda one: type(one).__name__)
def test_files_over_devices_of_an_earlier_version_have_another_word_for_the_coordinator(now: Message) -> None:
    text = now.model_dump_json()
    earlier = text.replace("coordinator", "home")
    assert earlier != text
    found = type(now).model_validate_json(earlier)
    assert found == now
    assert found.model_dump_json() == text
