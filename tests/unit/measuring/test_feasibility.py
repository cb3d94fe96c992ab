"""Answers to budgets from measured SubNets, SubNets on the diagonal, and lines for bad input; no device is asked."""

import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tailor_ir
from flows.pipeline.feasibility import profile
from profiling_agents.client import AgentClient
from profiling_agents.messages import AgentError
from profiling_agents.startup import TOKEN_VARIABLE
from tailor_ir import SuperNet
from tasks.base.errors import UserError
from tasks.measuring.feasibility import (
    AskedDevice,
    DeviceFeasibility,
    Diagonal,
    Feasibility,
    TimedSubNet,
    answer,
    compiled,
    measured,
)


def small() -> nn.Module:
    """A network that is compiled in a moment."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Conv2d(32, 32, 3, 1, 1), nn.BatchNorm2d(32), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).eval()


@pytest.fixture(scope="module")
def net() -> SuperNet:
    return compiled(small(), np.zeros((1, 3, 32, 32), np.float32))[1]


def timed(macs: int, p50_ms: float | None) -> TimedSubNet:
    reason = "it crashed" if p50_ms is None else None
    return TimedSubNet(
        name="", config={}, macs=macs, parameters=10 * macs, memory_mib=1.0, p50_ms=p50_ms, reason=reason
    )


SUBNETS = (timed(100, 2.0), timed(400, 3.0), timed(1000, 9.0))


@pytest.mark.parametrize(
    ("budget_ms", "verdict", "macs"),
    [(1.0, "no", None), (2.0, "yes", 100), (2.5, "yes", 250), (3.0, "yes", 400), (6.0, "yes", 700),
     (9.0, "already met", 1000), (50.0, "already met", 1000)],
)  # fmt: skip
def test_budgets_are_interpolated_between_measured_subnets(budget_ms: float, verdict: str, macs: int | None) -> None:
    found = answer(budget_ms, SUBNETS)
    assert (found.verdict, found.macs) == (verdict, macs)
    assert found.share_of_macs == (None if macs is None else macs / 1000)
    assert found.parameters == (None if macs is None else 10 * macs)
    assert found.subnet is (None if macs is None else [one for one in SUBNETS if one.macs <= macs][-1])


def test_the_largest_subnet_within_a_budget_counts_even_if_a_smaller_one_is_slower() -> None:
    found = answer(2.5, (timed(100, 2.8), timed(400, 2.0), timed(1000, 9.0)))
    assert found.verdict == "yes"
    assert found.macs == round(400 + 600 * 0.5 / 7)


@pytest.mark.parametrize(
    ("smallest_ms", "largest_ms", "budget_ms", "verdict", "share"),
    [(2.0, None, 1.0, "no", None), (2.0, None, 5.0, "yes", 0.1), (None, 9.0, 5.0, "unknown", None),
     (None, 9.0, 9.5, "already met", 1.0), (None, None, 5.0, "unknown", None)],
)  # fmt: skip
def test_budgets_of_subnets_that_could_not_be_timed(
    smallest_ms: float | None, largest_ms: float | None, budget_ms: float, verdict: str, share: float | None
) -> None:
    found = answer(budget_ms, (timed(100, smallest_ms), timed(1000, largest_ms)))
    assert (found.verdict, found.share_of_macs) == (verdict, share)


def test_the_diagonal_goes_from_the_smallest_to_the_largest_in_small_steps(net: SuperNet) -> None:
    along = [net.macs(Diagonal(net).at(fraction)) for fraction in np.linspace(0, 1, 33)]
    assert along == sorted(along)
    assert along[0] == net.macs(net.min_config)
    assert along[-1] == net.macs(net.max_config)
    assert len(set(along)) > int(net.space.cardinalities.max())


def test_subnets_of_any_size_are_on_the_diagonal() -> None:
    """Resolution alone changes multiply-accumulates by more."""
    _, deep = compiled("mobilenetv3_small_050", torch.zeros(1, 3, 64, 64))
    for share in (0.25, 0.4, 0.6, 0.8):
        wanted = share * deep.macs(deep.max_config)
        assert deep.macs(Diagonal(deep).near(wanted)) == pytest.approx(wanted, rel=0.25)


def test_a_device_that_fails_has_the_reason(net: SuperNet) -> None:
    def broken() -> AbstractContextManager[AgentClient]:
        raise AgentError("agent: gone")

    found = measured(net, [AskedDevice("board", broken)], [1.0], time.monotonic() + 60)["board"]
    assert [one.name for one in found.subnets] == ["smallest", "largest"]
    assert {one.reason for one in found.subnets} == {"agent: gone"}
    assert found.budgets[0].verdict == "unknown"
    text = str(Feasibility(network="net", devices={"board": found}, compile_s=0.1, seconds=0.2))
    assert text.count("not timed: agent: gone") == 1
    assert "unknown: the smallest SubNet could not be timed (agent: gone)" in text


def test_the_text_has_a_table_of_subnets_and_one_of_budgets() -> None:
    budgets = tuple(answer(budget_ms, SUBNETS) for budget_ms in (1.0, 6.0, 20.0))
    device = DeviceFeasibility(name="board", subnets=SUBNETS, budgets=budgets)
    lines = str(Feasibility(network="net", devices={"board": device}, compile_s=0.1, seconds=0.2)).splitlines()
    assert lines[0] == "net on board"
    assert any("the network itself" in line and "9 ms" in line and "100.0 %" in line for line in lines)
    assert any("no: the smallest SubNet takes 2 ms by the runtime's defaults" in line for line in lines)
    (yes,) = (line for line in lines if "yes, by 70.0 % of the MACs" in line)
    assert "interpolated between measured SubNets" in yes
    assert any("already met by the network itself, 9 ms" in line for line in lines)


def test_a_network_of_timm_has_its_own_input_size() -> None:
    name, net = compiled("test_vit")
    assert name == "test_vit"
    assert list(net.input_shapes(net.max_config).values()) == [(1, 3, 160, 160)]
    _, smaller = compiled("test_vit", torch.zeros(1, 3, 96, 96))
    assert smaller.macs(smaller.max_config) < net.macs(net.max_config)


def test_the_given_network_is_left_as_it_is() -> None:
    module = small().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    compiled(module, torch.rand(1, 3, 32, 32))
    with pytest.raises(UserError, match="does not take"):
        compiled(module, torch.rand(1, 4, 32, 32))
    assert all(one.training for one in module.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, net: SuperNet) -> Path:
    path = tmp_path_factory.mktemp("files") / "small.onnx"
    net.export(net.max_config, path)
    return path


def test_a_file_has_its_own_input_shape(file: Path, net: SuperNet) -> None:
    for model in (file, str(file)):
        name, read = compiled(model)
        assert name == "small.onnx"
        assert read.macs(read.max_config) == net.macs(net.max_config)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "network": ({"model": "resnet1"}, r"model: timm has no network 'resnet1'; allowed: for example .*resnet"),
    "type": ({"model": 3}, r"model: got int; allowed: a torch.nn.Module, the path"),
    "file": ({"model": "nowhere.onnx"}, r"model: 'nowhere.onnx' does not exist"),
    "other file": ({"model": Path("net.pt")}, r"model: got 'net.pt'; allowed: .*; export it to ONNX"),
    "no example": ({"example": None}, r"example: got None; allowed: one sample with batch axis 1"),
    "shape": (
        {"example": torch.zeros(1, 4, 32, 32)},
        r"example: network 'Sequential' does not take \(1, 4, 32, 32\) \(",
    ),
    "word": ({"example": "image"}, r"example: got str; allowed: a tensor or array"),
    "shape for timm": ({"model": "resnet18", "example": torch.zeros(3)}, r"example: got \(3\); allowed: one image"),
    "device": ({"devices": "ncn"}, r"devices: got 'ncn'; allowed: .*onnxruntime.*; did you mean 'ncnn'\?"),
    "board": ({"devices": ["remote"]}, r"devices: got 'remote'; allowed: .* or a mapping of names to options"),
    "none": ({"devices": ()}, r"devices: got none; allowed: one or more"),
    "option": ({"devices": {"board": {"backend": "tvm"}}}, r"device.board.backend: got 'tvm'; allowed: 'executorch'"),
    "batch": ({"devices": {"a": {"backend": "torch", "batch": 8}}}, r"device.a.batch: got 8; allowed: 1"),
    "token": ({"devices": "http://127.0.0.1:9"}, rf"\${TOKEN_VARIABLE} is not set; put the agent's token there"),
    "budget": ({"budgets_ms": [1.0, 0.0]}, r"budgets_ms: got 0.0; allowed: numbers above 0"),
}


class NoDevice:
    """In the place of devices, which unit tests do not start."""

    def __init__(self, profiles: Any) -> None:
        self.profiles = profiles

    def capabilities(self, name: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_line(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.pipeline.feasibility.Devices", NoDevice)
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    given, line = REFUSED[case]
    usual: dict[str, Any] = {"model": small(), "example": torch.zeros(1, 3, 32, 32)}
    with pytest.raises(UserError, match=line) as refused:
        profile(**(usual | given))
    assert "\n" not in str(refused.value)


def test_a_file_that_is_no_network_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no network")
    with pytest.raises(tailor_ir.TailorError, match=r"bad\.onnx': not a readable ONNX file"):
        compiled(tmp_path / "bad.onnx")


def test_an_example_that_differs_from_a_file_is_one_line(file: Path) -> None:
    with pytest.raises(
        UserError, match=r"example: got \(1, 3, 16, 16\); allowed: \(1, 3, 32, 32\), as '.*small.onnx' has it"
    ):
        compiled(file, torch.zeros(1, 3, 16, 16))
