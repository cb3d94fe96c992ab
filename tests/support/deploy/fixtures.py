"""A wheel, and bundles of one network, that all tests share."""

from pathlib import Path

import pytest
import torch

import tailor_ir
from tailor_ir import SuperNet
from tasks.deploy.deployment import build_wheel
from tests.support.deploy.deployments import write_bundle
from tests.support.ir.networks import small_net


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def net() -> SuperNet:
    return tailor_ir.compile(small_net(), torch.randn(1, 3, 16, 16), {"*.width_mult": [0.5, 1]})


@pytest.fixture(scope="session")
def bundle(net: SuperNet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "bundle"
    write_bundle(net, folder)
    return folder


@pytest.fixture(scope="session")
def small_bundle(net: SuperNet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The next export: another set of SubNets."""
    folder = tmp_path_factory.mktemp("exported") / "bundle"
    write_bundle(net, folder, largest=False)
    return folder
