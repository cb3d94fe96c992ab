"""Calls of the pipeline from Python, with live objects in the place of names."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
from torch import nn

import tailor_ir
from autotailor.live import live_data, live_function, live_network, weights_digest
from autotailor.results import Stage, Tailored
from flows.cli.entry import users_errors
from flows.config import RetargetConfig, RetargetStage, RunConfig, RunStage
from flows.config.compose import compose_config
from flows.config.validate import of_network, of_samples, validate
from flows.machine import prepare
from flows.machine.server import start_server
from flows.pipeline.refusals import check_given, check_places
from tailor_ir import Config, SuperNet
from tasks.base.errors import UserError
from tasks.base.own_code import LIVE_NAME
from tasks.data import load
from tasks.data.dataset import DATA_FILE, remember
from tasks.data.own import Data
from tasks.data.problems import problem_named
from tasks.evaluation.models.outputs import check_answer
from tasks.evaluation.subnets import EvaluationData, set_own_statistics
from tasks.training.compile import keep_teacher

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def _short(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """The function, whose errors of one line come without the frames and causes in which Prefect would bury the line."""

    @wraps(function)
    def called(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        try:
            return function(*args, **kwargs)
        except users_errors() as error:
            raise error.with_traceback(None) from None

    return called


SUPERNETS_FOLDER = "supernets"
"""Folder of SuperNets that loops of users have trained, below the output folder."""
ALONE = ("base.processes=1", "finetune.processes=1")
"""Training in one process: this one."""
TRAINING = ("compile", "finetune")
"""Stages that make a SuperNet."""


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


Devices = Sequence[str | Agent] | Mapping[str, Agent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The request of a run, which `tailor` works whole, and `compile`, `finetune`, … as far as their stage.

    model: a module with its weights, the path of an .onnx file, a name of timm, a function FILE.py:function or module:function
    that gives a module with its weights, or a SuperNet that your own loop has trained. data: `Data`, a Dataset, a DataLoader,
    arrays, (train, validation, test) of these, a function that gives one of them by its name, or a path of samples without
    labels. loss: loss(outputs, targets), the mean of a batch. score: score(outputs, targets), a number in [0, 1] for each
    sample, higher is better; both as functions or by name. Without both, the answers of the network are the targets; a score
    alone is that of `Data.labelled`. devices: runtimes on this machine, or agents. budgets_ms: None: budgets are chosen along
    the front. minutes: time that the whole run may take; epochs, budgets and candidates follow from it, and the plan is told
    first. options: further options as on the command line, such as "finetune.epochs=5".
    """

    model: nn.Module | SuperNet | str | Path
    data: Any
    loss: Callable[..., Any] | str | None = None
    score: Callable[..., Any] | str | None = None
    devices: Devices = ("onnxruntime",)
    budgets_ms: Sequence[float] | None = None
    minutes: float | None = None
    output_dir: str | Path = "outputs"
    options: Sequence[str] = ()

    def config(self) -> RunConfig | RetargetConfig:
        """As on the command line, with live objects under names; a SuperNet is saved in the output folder."""
        mine = [
            *_of_data(self.data),
            *_of_problem(self.loss, self.score, self.data),
            *self.options,
            *([] if self.minutes is None else [f"minutes={self.minutes}"]),
            f"output_dir={self.output_dir}",
        ]
        net = self.model
        if isinstance(net, SuperNet):
            config: RunConfig | RetargetConfig = self._retargeted(net, mine)
        else:
            config = self._whole([*_of_model(net), *mine])
        return config if self.budgets_ms is None else config.with_budgets([float(one) for one in self.budgets_ms])

    def _whole(self, mine: Sequence[str]) -> RunConfig:
        places = [option.partition("=")[0] for option in mine if f"='{LIVE_NAME}:" in option]
        live = [place.removesuffix(".name").rpartition(".")[2] for place in places]
        config = validate(RunConfig, self._composed("config", [*(ALONE if live else ()), *mine]))
        if live:
            _check_alone(config, live)
        return _with_names(config, self.model) if isinstance(self.model, nn.Module) else config

    def _composed(self, name: str, overrides: Sequence[str]) -> dict[str, Any]:
        local = [] if isinstance(self.devices, Mapping) else [one for one in self.devices if isinstance(one, str)]
        plain = compose_config(name, [f"device=[{','.join(local)}]", *overrides])
        return {**plain, "device": {**plain["device"], **_agents(self.devices)}}

    def _retargeted(self, net: SuperNet, mine: Sequence[str]) -> RetargetConfig:
        folder = Path(self.output_dir) / SUPERNETS_FOLDER / weights_digest(net.elastic)
        config = validate(RetargetConfig, self._composed("retarget", [f"supernet='{folder}'", *mine]))
        if not (folder / DATA_FILE).exists():
            net.save(folder)
            train = load(config.data, "train")
            saved = tailor_ir.load(folder)
            if train.form.fault(saved.input_shapes(saved.max_config)) is None:
                set_own_statistics(saved, EvaluationData(train, train))  # those of a loop are of all SubNets at once
                saved.save(folder)
            keep_teacher(saved, train, folder)
            remember(train, folder)
        return config


@_short
def tailor(
    model: nn.Module | str | Path,
    data: Any,
    *,
    loss: Callable[..., Any] | str | None = None,
    score: Callable[..., Any] | str | None = None,
    devices: Devices = ("onnxruntime",),
    budgets_ms: Sequence[float] | None = None,
    minutes: float | None = None,
    output_dir: str | Path = "outputs",
    options: Sequence[str] = (),
) -> Tailored:
    """The best SubNets of a network for each device and each latency budget. The arguments are those of `Job`.

    A call that was killed goes on when it is repeated. UserError: one line about bad input.
    """
    return _tailored(
        Job(
            model=model, data=data, loss=loss, score=score, devices=devices, budgets_ms=budgets_ms,
            minutes=minutes, output_dir=output_dir, options=options,
        ),
        "report",
    )  # fmt: skip


@_short
def resume(
    net: SuperNet,
    data: Any,
    *,
    loss: Callable[..., Any] | str | None = None,
    score: Callable[..., Any] | str | None = None,
    devices: Devices = ("onnxruntime",),
    budgets_ms: Sequence[float] | None = None,
    minutes: float | None = None,
    output_dir: str | Path = "outputs",
    options: Sequence[str] = (),
) -> Tailored:
    """The rest of `tailor` for a SuperNet that your own loop has trained: operators, tables, search, files. See `Job`.
    BatchNorm statistics of the largest SubNet are taken anew from training samples, in a copy of the SuperNet.
    """
    return _tailored(
        Job(
            model=net, data=data, loss=loss, score=score, devices=devices, budgets_ms=budgets_ms,
            minutes=minutes, output_dir=output_dir, options=options,
        ),
        "report",
    )  # fmt: skip


@_short
def compile(job: Job) -> Stage:
    """The SuperNet before its training, as `autotailor compile` makes it: `compile(job).supernet`."""
    (found,) = _stages(job, "compile").values()
    return found


@_short
def finetune(job: Job) -> Stage:
    """The trained SuperNet, as `autotailor finetune` makes it: `finetune(job).supernet`."""
    (found,) = _stages(job, "finetune").values()
    return found


@_short
def profile_operators(job: Job) -> dict[str, Stage]:
    """The look-up table of each device, as `autotailor profile` makes it: `profile_operators(job)["ncnn"].table`."""
    return _stages(job, "profile")


@_short
def search(job: Job) -> dict[str, Stage]:
    """The front of each device as predicted, as `autotailor search` makes it: `search(job)["ncnn"].table`."""
    return _stages(job, "search")


@_short
def export(job: Job) -> Tailored:
    """The checked and measured files, as `autotailor export` makes them: all of `tailor` except the report."""
    return _tailored(job, "export")


def sandwich(net: SuperNet, rng: np.random.Generator, random_subnets: int = 2) -> Iterator[Config]:
    """The SubNets of a step of the sandwich rule, for training loops of your own: the largest, the smallest, random ones.

    Source: Universally Slimmable Networks (ICCV 2019) §3.2.
    """
    yield net.max_config
    yield net.min_config
    for _ in range(random_subnets):
        yield net.space.sample(rng)


def _stages(job: Job, until: RunStage) -> dict[str, Stage]:
    """The stages with which a command ends, by device; "": of no device."""
    if isinstance(job.model, SuperNet) and until in TRAINING:
        raise UserError(until, "the job has a SuperNet already", allowed="profile_operators, search, export")
    config = job.config()
    score = problem_named(config.data.problem, config.data.metric).score
    ended = [Stage.of(summary, score) for summary in _worked(config, until)["stages"]]
    return {one.device: one for one in ended}


def _tailored(job: Job, until: RunStage) -> Tailored:
    config = job.config()
    return Tailored(config, _worked(config, until))


def _worked(config: RunConfig | RetargetConfig, until: RunStage) -> dict[str, Any]:
    """Work a config up to the end of a command."""
    check_given(config)
    check_places(config)
    prepare(quiet=True)
    wait_until_ready = start_server()
    from flows.pipeline.tailoring import (  # flows describe their options to Prefect, which takes 0.2 s
        pipeline,
        retarget,
    )

    wait_until_ready()
    return pipeline(config, until) if isinstance(config, RunConfig) else retarget(config, cast(RetargetStage, until))


def _agents(devices: Devices) -> dict[str, Any]:
    named = devices if isinstance(devices, Mapping) else {one.name: one for one in devices if isinstance(one, Agent)}
    return {name: _profile(one) for name, one in named.items()}


def _profile(agent: Agent) -> dict[str, Any]:
    files = {name: str(one) for name in ("token_file", "ca_file") if (one := getattr(agent, name)) is not None}
    return {"backend": agent.backend, "threads": agent.threads, "agent": agent.url, **files}


def _with_names(config: RunConfig, model: nn.Module) -> RunConfig:
    """The config with the names of outputs, found by one run, if loss and score get a dictionary from the network."""
    problem = config.data.own_problem
    if problem is None or not problem.functions or problem.outputs is not None:
        return config
    train = load(config.data, "train")
    where = f"model '{type(model).__name__}'"
    answer = check_answer(where, model, train.classes, train.form, own_code=None, problem=train.problem)
    if not isinstance(answer, dict):
        return config
    problem = problem.model_copy(update={"outputs": dict.fromkeys(answer)})
    return config.model_copy(update={"data": config.data.model_copy(update={"own_problem": problem})})


def _check_alone(config: RunConfig, live: Sequence[str]) -> None:
    """UserError if other processes shall train objects of this one."""
    for name, training in (("base", config.base), ("finetune", config.finetune)):
        for option in ("processes", "nodes"):
            if (count := getattr(training, option)) > 1:
                where, got = f"{name}.{option}", f"{count} with objects of this process ({', '.join(live)})"
                names = "functions by name, which other processes can import: FILE.py:function or module:function"
                raise UserError(where, got, allowed=f"1, or {names}")


def _of_model(model: nn.Module | str | Path) -> list[str]:
    if isinstance(model, nn.Module):
        return ["model=callable", f"model.name='{live_network(model)}'", "model.trained=true"]
    return of_network(os.fspath(model))


def _of_data(data: Any) -> list[str]:
    if isinstance(data, str | Path):
        return of_samples(os.fspath(data))
    return ["data=own", f"data.name='{live_data(data)}'"]


def _of_problem(loss: Callable[..., Any] | str | None, score: Callable[..., Any] | str | None, data: Any) -> list[str]:
    is_labelled = isinstance(data, Data) and data.labelled is not None
    if (loss is None) != (score is None) and not (loss is None and is_labelled):
        got = "a score without a loss" if loss is None else "a loss without a score"
        raise UserError("tailor", got, allowed="both, or neither: then the network's own answers are the targets")
    given = {"loss": loss, "score": score}
    names = {
        role: one if isinstance(one, str) else live_function(one) for role, one in given.items() if one is not None
    }
    kind = "fidelity" if loss is None else "own"
    return [f"problem={kind}", *(f"problem.{role}='{name}'" for role, name in names.items())]
