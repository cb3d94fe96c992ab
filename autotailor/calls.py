"""Calls of the pipeline from Python, with live objects in the place of names."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from autotailor.live import live_data, live_function, live_network, weights_digest
from autotailor.results import Tailored
from flows.config import RetargetConfig, RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from flows.machine import prepare
from flows.machine.server import start_server
from flows.pipeline.refusals import check_given, check_places
from tailor_ir import Config, SuperNet
from tasks.base.errors import UserError
from tasks.data import load
from tasks.data.dataset import DATA_FILE, remember
from tasks.training.compile import keep_teacher

SUPERNETS_FOLDER = "supernets"
"""Folder of SuperNets that loops of users have trained, below the output folder."""
ALONE = ("base.processes=1", "finetune.processes=1")
"""Training in one process: this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A device whose agent runs already. url: `http://HOST:PORT` or https. token_file: the agent's token."""

    url: str
    backend: str = "ncnn"
    threads: int = 1
    token_file: str | Path | None = None
    ca_file: str | Path | None = None

    @property
    def name(self) -> str:
        """The name of the device in tables: the host."""
        return self.url.split("://")[-1].split(":")[0].split("/")[0]


def tailor(
    model: nn.Module | str | Path,
    data: Any,
    *,
    loss: Callable[..., Any] | None = None,
    score: Callable[..., Any] | None = None,
    devices: Sequence[str | Agent] | Mapping[str, Agent] = ("onnxruntime",),
    budgets_ms: Sequence[float] | None = None,
    output_dir: str | Path = "outputs",
    options: Sequence[str] = (),
) -> Tailored:
    """The best SubNets of a network for each device and each latency budget.

    model: a module with its weights, the path of an .onnx file, or a name of timm. data: `Data`, a Dataset, a DataLoader,
    arrays, (train, validation, test) of these, or a path of samples without labels. loss: loss(outputs, targets), the mean of a
    batch. score: score(outputs, targets), a number in [0, 1] for each sample, higher is better. Without both, the answers of
    the network are the targets. devices: runtimes on this machine, or agents. budgets_ms: None: budgets are chosen along the
    front. options: further options as on the command line, such as "finetune.epochs=5". A call that was killed goes on when
    it is repeated. UserError: one line about bad input.
    """
    config = config_of(model, data, loss, score, devices=devices, options=[*options, f"output_dir={output_dir}"])
    if budgets_ms is not None:
        config = config.with_budgets([float(one) for one in budgets_ms])
    return _called(config)


def sandwich(net: SuperNet, rng: np.random.Generator, random_subnets: int = 2) -> Iterator[Config]:
    """The SubNets of a step of the sandwich rule, for training loops of your own: the largest, the smallest, random ones.

    Source: Universally Slimmable Networks (ICCV 2019) §3.2.
    """
    yield net.max_config
    yield net.min_config
    for _ in range(random_subnets):
        yield net.space.sample(rng)


def resume(
    net: SuperNet,
    data: Any,
    *,
    loss: Callable[..., Any] | None = None,
    score: Callable[..., Any] | None = None,
    devices: Sequence[str | Agent] | Mapping[str, Agent] = ("onnxruntime",),
    budgets_ms: Sequence[float] | None = None,
    output_dir: str | Path = "outputs",
    options: Sequence[str] = (),
) -> Tailored:
    """The rest of `tailor` for a SuperNet that your own loop has trained: operators, tables, search, files. See `tailor`."""
    folder = Path(output_dir) / SUPERNETS_FOLDER / weights_digest(net.elastic)
    mine = [*_of_data(data), *_of_problem(loss, score), *options, f"output_dir={output_dir}"]
    plain = compose_config("retarget", [f"supernet='{folder}'", *_devices(devices), *mine])
    plain["device"] = {**plain["device"], **_agents(devices)}
    config = validate(RetargetConfig, plain)
    if not (folder / DATA_FILE).exists():
        net.save(folder)
        train = load(config.data, "train")
        keep_teacher(net, train, folder)
        remember(train, folder)
    if budgets_ms is not None:
        config = config.with_budgets([float(one) for one in budgets_ms])
    return _called(config)


def _called(config: RunConfig | RetargetConfig) -> Tailored:
    """Work the whole pipeline of a config."""
    check_given(config)
    check_places(config)
    prepare(quiet=True)
    wait_until_ready = start_server()
    from flows.pipeline.tailoring import (  # flows describe their options to Prefect, which takes 0.2 s
        pipeline,
        retarget,
    )

    wait_until_ready()
    return Tailored(config, pipeline(config) if isinstance(config, RunConfig) else retarget(config))


def _devices(devices: Sequence[str | Agent] | Mapping[str, Agent]) -> list[str]:
    local = [] if isinstance(devices, Mapping) else [one for one in devices if isinstance(one, str)]
    return [f"device=[{','.join(local)}]"]


def _agents(devices: Sequence[str | Agent] | Mapping[str, Agent]) -> dict[str, Any]:
    named = devices if isinstance(devices, Mapping) else {one.name: one for one in devices if isinstance(one, Agent)}
    return {name: _profile(one) for name, one in named.items()}


def config_of(
    model: nn.Module | str | Path,
    data: Any,
    loss: Callable[..., Any] | None,
    score: Callable[..., Any] | None,
    *,
    devices: Sequence[str | Agent] | Mapping[str, Agent],
    options: Sequence[str],
) -> RunConfig:
    """The config of a run on live objects: that of the command line with these sections replaced."""
    mine = [*_devices(devices), *ALONE]
    plain = compose_config("config", [*mine, *_of_model(model), *_of_data(data), *_of_problem(loss, score), *options])
    plain["device"] = {**plain["device"], **_agents(devices)}
    return validate(RunConfig, plain)


def _profile(agent: Agent) -> dict[str, Any]:
    files = {name: str(one) for name in ("token_file", "ca_file") if (one := getattr(agent, name)) is not None}
    return {"backend": agent.backend, "threads": agent.threads, "agent": agent.url, **files}


def _of_model(model: nn.Module | str | Path) -> list[str]:
    if isinstance(model, nn.Module):
        return ["model=callable", f"model.name='{live_network(model)}'", "model.trained=true"]
    if Path(model).suffix == ".onnx":
        return ["model=onnx", f"model.path='{os.fspath(model)}'"]
    return ["model=timm", f"model.name='{model}'"]


def _of_data(data: Any) -> list[str]:
    if isinstance(data, str | Path):
        return ["data=unlabelled", f"data.path='{os.fspath(data)}'"]
    return ["data=own", f"data.name='{live_data(data)}'"]


def _of_problem(loss: Callable[..., Any] | None, score: Callable[..., Any] | None) -> list[str]:
    if (loss is None) != (score is None):
        got = "a score without a loss" if loss is None else "a loss without a score"
        raise UserError("tailor", got, allowed="both, or neither: then the network's own answers are the targets")
    if loss is None or score is None:
        return ["problem=fidelity"]
    return ["problem=own", f"problem.loss='{live_function(loss)}'", f"problem.score='{live_function(score)}'"]
