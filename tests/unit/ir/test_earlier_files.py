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
