"""Real small networks as SuperNets, compiled once."""

import dataclasses

import pytest
import timm
import torch

import tailor_ir
from tailor_ir import SuperNet
from tasks.report.view import SupernetView, gather
from tests.support.flows.fixtures import own_cache as own_cache
from tests.support.ir.networks import perturb

NETWORKS = {"test_resnet": 32, "test_vit": 160, "mobilenetv3_small_050": 64}


@dataclasses.dataclass(frozen=True)
class Viewed:
    """A SuperNet and its view."""

    name: str
    net: SuperNet
    view: SupernetView


@pytest.fixture(scope="session", params=list(NETWORKS))
def viewed(request: pytest.FixtureRequest) -> Viewed:
    torch.manual_seed(0)
    size = NETWORKS[request.param]
    network = perturb(timm.create_model(request.param, num_classes=10))
    net = tailor_ir.compile(network, torch.zeros(1, 3, size, size))
    return Viewed(request.param, net, gather(net, request.param))
