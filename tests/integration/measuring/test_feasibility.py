"""A network's ends on real agents, and answers to budgets below, between and above them."""

import math

import pytest
import timm
import torch

from flows.pipeline.feasibility import profile
from profiling_agents.client import local_agent
from profiling_agents.startup import TOKEN_VARIABLE
from tailor_ir import SuperNet
from tasks.evaluation.ncnn.files import NcnnFiles
from tasks.measuring.feasibility import LIMITS, Feasibility, compiled
from tasks.measuring.subnets import Subject, jobs_of

DEVICES = ("ncnn", "onnxruntime")
NETWORK = "mobilenetv3_small_050"
SIZE = (1, 3, 160, 160)


@pytest.fixture(scope="module")
def ends() -> Feasibility:
    """The ends alone: the limit has passed before anything is measured."""
    return profile(timm.create_model(NETWORK), torch.zeros(SIZE), DEVICES, limit_s=0.0)


@pytest.mark.parametrize("device", DEVICES)
def test_both_ends_are_measured_within_any_limit(ends: Feasibility, device: str) -> None:
    found = ends.devices[device]
    assert [one.name for one in found.subnets] == ["smallest", "largest"]
    assert found.smallest.p50_ms is not None
    assert found.largest.p50_ms is not None
    assert found.smallest.p50_ms < found.largest.p50_ms
    assert found.smallest.macs < found.largest.macs
    assert found.smallest.parameters < found.largest.parameters
    assert 0 < found.smallest.memory_mib < found.largest.memory_mib
    assert found.budgets == ()
    assert ends.compile_s < ends.seconds


def test_budgets_below_between_and_above_the_ends(ends: Feasibility) -> None:
    known = ends.devices["onnxruntime"]
    assert known.smallest.p50_ms is not None
    assert known.largest.p50_ms is not None
    between_ms = math.sqrt(known.smallest.p50_ms * known.largest.p50_ms)
    budgets_ms = [known.smallest.p50_ms / 10, between_ms, 20 * known.largest.p50_ms]
    found = profile(NETWORK, torch.zeros(SIZE), "onnxruntime", budgets_ms, limit_s=60.0).devices["onnxruntime"]
    below, between, above = found.budgets
    assert (below.verdict, between.verdict, above.verdict) == ("no", "yes", "already met")
    assert below.share_of_macs is None
    assert above.share_of_macs == 1.0
    assert between.share_of_macs is not None
    assert 0 < between.share_of_macs < 1
    assert between.subnet is not None
    assert between.subnet.p50_ms is not None
    assert between.subnet.p50_ms <= between_ms
    assert len(found.subnets) >= 5
    macs = [one.macs for one in found.subnets]
    assert macs == sorted(macs)


def test_an_agent_that_runs_is_asked_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    token = "0" * 64
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    with local_agent("onnxruntime", token=token) as client:
        found = profile("test_vit", devices=client.url, budgets_ms=1e6, limit_s=0.0)
    (device,) = found.devices.values()
    assert device.name == client.url
    assert device.budgets[0].verdict == "already met"
    assert client.url in str(found)


def test_a_network_that_a_runtime_lacks_has_the_reason() -> None:
    found = profile("levit_128s", None, "ncnn", 10.0).devices["ncnn"]
    assert found.budgets[0].verdict == "unknown"
    assert all("ncnn has no layer for 'Tensor.slice'" in str(one.reason) for one in found.subnets)


@pytest.mark.parametrize("name", [NETWORK, "test_vit", "test_convnext"])
def test_ncnn_has_the_same_layers_without_weights(name: str) -> None:
    """But for the names of constants."""
    _, net = compiled(name)
    bare, whole = (_layers(net, bare=bare) for bare in (True, False))
    assert bare == whole


def _layers(net: SuperNet, *, bare: bool) -> list[tuple[object, ...]]:
    with local_agent("ncnn") as client:
        device = client.capabilities()
    job = jobs_of([Subject("0", net, net.min_config)], device, LIMITS, weights=False, bare=bare)["0"]
    assert not isinstance(job, str), job
    layers = NcnnFiles(param=job.files[0], bin=b"").layers()
    return [(one.kind, one.parameters, len(one.inputs), len(one.outputs)) for one in layers]
