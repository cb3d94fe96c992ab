"""A job from Python is the config of the same command, with live objects or names of functions."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import autotailor
import tailor_ir
from autotailor.calls import ALONE
from flows.config import RetargetConfig, RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from tasks.base.own_code import is_live
from tasks.data import load

X = torch.rand(40, 1, 6, 6)
Y = torch.arange(40) % 2


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(64, 2))


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets)


def score(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(1) == targets).float()


class Outputs(nn.Module):
    """Several outputs in a container."""

    def __init__(self, contain: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.contain = nn.Linear(6, 2), contain

    def forward(self, x: torch.Tensor) -> Any:
        """Outputs (B, 1, 6, 2) and (B, 1, 6)."""
        found = self.layer(x)
        return self.contain(found, found.sum(3))


LIVE: dict[str, Any] = {"model": network(), "data": (X, Y), "loss": loss, "score": score}
NAMED: dict[str, Any] = {
    "model": "mine.py:network",
    "data": "mine.py:splits",
    "loss": "mine.py:loss",
    "score": "mine.py:score",
}


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("network = splits = loss = score = None\n")


def test_functions_by_name_give_the_config_of_the_command_line() -> None:
    found = autotailor.Job(**NAMED, budgets_ms=[2, 4], options=["finetune.epochs=3"]).config()
    words = [
        "model=callable",
        "model.name=mine.py:network",
        "model.trained=true",
        "data=own",
        "data.name=mine.py:splits",
    ]
    words += ["problem=own", "problem.loss=mine.py:loss", "problem.score=mine.py:score", "device=[onnxruntime]"]
    words += ["finetune.epochs=3", "search.budgets_ms=[2.0,4.0]", "output_dir=outputs"]
    assert found == validate(RunConfig, compose_config("config", words))


def test_equal_objects_have_one_name_and_others_another() -> None:
    job, same = (autotailor.Job(**{**LIVE, "data": (x, Y)}).config() for x in (X, X.clone()))
    other = autotailor.Job(**{**LIVE, "data": (X + 1, Y)}).config()
    assert job == same
    assert is_live(job.data.name)
    assert job.data.name != other.data.name


@pytest.mark.parametrize("name", ["hf-hub:timm/resnet18", "resnet18"])
def test_names_of_networks_at_a_hub_are_no_functions(name: str) -> None:
    config = autotailor.Job(**{**LIVE, "model": name}).config()
    assert isinstance(config, RunConfig)
    assert (config.model.kind, config.model.name) == ("timm", name)


@pytest.mark.parametrize("option", ["finetune.processes=2", "base.processes=4"])
def test_objects_of_this_process_are_not_sent_to_others(option: str) -> None:
    for live in ("model", "data", "loss"):
        given = {**NAMED, live: LIVE[live]}
        with pytest.raises(
            autotailor.UserError, match=rf"objects of this process \({live}\).*FILE\.py:function or module"
        ):
            autotailor.Job(**given, options=[option]).config()
    assert autotailor.Job(**NAMED, options=["finetune.processes=2"]).config()
    live_config = autotailor.Job(**LIVE).config()
    assert isinstance(live_config, RunConfig)
    assert [f"{name}.processes={getattr(live_config, name).processes}" for name in ("base", "finetune")] == [*ALONE]


CONTAINERS: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], Any], list[str] | None]] = {
    "dictionary": (lambda scores, boxes: {"scores": scores, "boxes": boxes}, ["scores", "boxes"]),
    "ordered": (lambda scores, boxes: OrderedDict(scores=scores, boxes=boxes), ["scores", "boxes"]),
    "tuple": (lambda scores, boxes: (scores, boxes), None),
    "list": (lambda scores, boxes: [scores, boxes], None),
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_names_of_outputs_are_found_by_a_run(container: str) -> None:
    contain, names = CONTAINERS[container]
    model = Outputs(contain).train()
    found = autotailor.Job(**{**LIVE, "model": model}).config().data.own_problem
    assert found is not None
    assert (found.outputs and list(found.outputs)) == names
    assert model.training
    given = autotailor.Job(**{**LIVE, "model": model}, options=["problem.outputs={a:null,b:null}"]).config()
    assert given.data.own_problem is not None
    assert list(given.data.own_problem.outputs or ()) == ["a", "b"]


def test_outputs_that_are_no_tensors_are_one_line() -> None:
    model = Outputs(lambda scores, boxes: {"scores": scores, "boxes": [boxes, boxes]})
    with pytest.raises(autotailor.UserError, match=r"model 'Outputs': gives dict; allowed: a tensor, several tensors"):
        autotailor.Job(**{**LIVE, "model": model}).config()


def test_a_score_needs_a_loss_and_a_supernet_is_not_made_twice() -> None:
    with pytest.raises(autotailor.UserError, match=r"a score without a loss.*neither"):
        autotailor.Job(model=LIVE["model"], data=X, score=score).config()
    job = autotailor.Job(model=tailor_ir.compile(network(), X[:1]), data=X)
    for stage in (autotailor.compile, autotailor.finetune):
        with pytest.raises(
            autotailor.UserError, match="has a SuperNet already; allowed: profile_operators, search, export"
        ):
            stage(job)


def test_the_largest_subnet_of_a_loop_gets_statistics_of_its_own() -> None:
    layers = (nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4))
    net = tailor_ir.compile(nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 2)), X[:1])
    rng = np.random.default_rng(0)
    net.elastic.train()
    for _ in range(20):
        for subnet in autotailor.sandwich(net, rng):
            net.elastic.activate(subnet)
            net.elastic(X)
    config = autotailor.Job(**{**LIVE, "model": net}).config()
    assert isinstance(config, RetargetConfig)
    saved = tailor_ir.load(config.supernet)
    train = load(config.data, "train")
    found, polluted = answers(saved), answers(net)
    saved.set_statistics(saved.recalibrate(saved.max_config, [next(train.batches(len(train)))[0]]))
    torch.testing.assert_close(found, answers(saved))
    assert float((polluted - found).abs().amax()) > 0.01


def answers(net: tailor_ir.SuperNet) -> torch.Tensor:
    """The answers of the largest SubNet to X."""
    net.elastic.eval()
    net.elastic.activate(net.max_config)
    with torch.no_grad():
        found: torch.Tensor = net.elastic(X)
    return found


@pytest.mark.parametrize("call", [autotailor.tailor, autotailor.compile, autotailor.export])
def test_bad_input_is_one_line_without_the_frames_of_libraries(call: Callable[..., Any]) -> None:
    given: dict[str, Any] = {"model": LIVE["model"], "data": X, "devices": ["ncn"]}
    if call is not autotailor.tailor:
        given = {"job": autotailor.Job(**given)}
    with pytest.raises(autotailor.UserError, match=r"'ncn' is no option; allowed: .*did you mean 'ncnn'") as raised:
        call(**given)
    assert [frame.name for frame in raised.traceback][1:] == ["called"]
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
