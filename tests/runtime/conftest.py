"""A small bundle that several modules serve from."""

from pathlib import Path
from typing import Any

import pytest
import torch

import tailor_ir
from tests.ir.networks import perturb, small_net
from tests.runtime.bundled import write_plain_bundle

SPACE: dict[str, Any] = {"*.width_mult": [0.5, 1], "exits": ["stage.1.block.*"]}


@pytest.fixture(scope="session")
def plain_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The largest and the smallest SubNet of a small network. To be copied by whoever changes it."""
    torch.manual_seed(0)
    net = tailor_ir.compile(perturb(small_net(blocks=3)), torch.randn(1, 3, 16, 16), SPACE)
    folder = tmp_path_factory.mktemp("plain") / "bundle"
    write_plain_bundle(net, [net.max_config, net.min_config], folder)
    return folder
