"""A small real SuperNet and a real agent on loopback for both runtimes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from timm.models.resnet import BasicBlock, ResNet

import tailor_ir
from profiling_agents.client import AgentClient, local_agent

SPACE: dict[str, list[float]] = {
    "resolution": [16, 32],
    "stage.2.depth": [-1, 0],
    "stage.2.width_mult": [0.5, 1.0],
    "stage.4.width_mult": [0.5, 1.0],
    "stage.2.block.1.expand_ratio": [0.5, 1.0],
}


@pytest.fixture(scope="session")
def supernet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a SuperNet of a residual network with 10 classes and 3 x 32 x 32 inputs."""
    torch.manual_seed(0)
    build: Callable[..., ResNet] = ResNet
    network = build(BasicBlock, (1, 2, 1, 1), num_classes=10, channels=(16, 16, 24, 32), stem_width=16)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            assert module.running_var is not None
            assert module.running_mean is not None
            torch.nn.init.uniform_(module.running_var, 0.5, 2.0)
            torch.nn.init.normal_(module.running_mean, std=0.1)
    folder = tmp_path_factory.mktemp("net") / "supernet"
    tailor_ir.compile(network.eval(), torch.randn(1, 3, 32, 32), space=SPACE).save(folder)
    return folder


@pytest.fixture(scope="session", params=["ncnn", "onnxruntime"])
def device(request: pytest.FixtureRequest) -> Iterator[AgentClient]:
    """A leased agent."""
    with local_agent(backend=request.param) as client, client.lease():
        yield client
