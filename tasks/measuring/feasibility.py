"""Feasibility of latency budgets before any training: the largest SubNet, the smallest, and some between, on devices.

Latencies depend on shapes alone, so neither trained weights nor data are needed. SubNets between the ends lie on the diagonal
of the space: all widths, depths and resolutions grow alike.
"""

import copy
import io
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import timm
import torch
from rich import box
from rich.console import RenderableType
from rich.table import Table
from torch import nn

import tailor_ir
from profiling_agents.client import AgentClient, ModelJob
from profiling_agents.messages import MIB, AgentError, Measurement, MeasureSettings
from tailor_ir import Config, SuperNet
from tasks.base.errors import UserError, shortened
from tasks.base.pages.text import PlainConsole, amount, milliseconds, percent
from tasks.evaluation.conversion import ConversionLimits
from tasks.evaluation.models.settings import ModelSettings
from tasks.evaluation.models.timm_networks import create_timm, unknown
from tasks.measuring.subnets import Subject, jobs_of

SETTINGS = MeasureSettings(warmup_ms=20.0, warmup_runs=1, min_samples=3, time_cap_ms=100.0, patience=1.0)
"""One short measurement of each SubNet, few runs of slow ones; a busy core is hardly waited for."""
LIMITS = ConversionLimits(wall_s=60.0)
BETWEEN = (0.5, 0.25, 0.75, 0.125, 0.375)
"""Places of SubNets between the ends, as shares of the way in multiply-accumulates, in the order of their measurement."""
LEAST_SHARE = 0.3
"""Least part of the largest SubNet's time that a SubNet between is expected to take: conversion, upload and loading stay."""
HALVINGS = 6
NEAR = 0.15
"""Largest difference from a wanted number of multiply-accumulates, in logarithms, of SubNets that are chosen by balance."""
SPREAD = (5**0.5 - 1) / 2
WIDTH = 140
ONNX = ".onnx"
NETWORKS = f"a torch.nn.Module, the path of an {ONNX} file, or a name of timm"

Example = torch.Tensor | np.ndarray | Sequence[Any] | Mapping[str, Any]
"""One sample with batch axis 1: a tensor or array, or one for each input, in order or by name."""
Verdict = Literal["already met", "yes", "no", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSubNet:
    """A SubNet on one device. memory_mib: an estimate, weights in fp32 and the peak of activations in onnxruntime.

    p50_ms: None if it could not be timed, for the `reason`. noisy: another measurement may differ.
    """

    name: str
    config: Config
    macs: int
    parameters: int
    memory_mib: float
    p50_ms: float | None = None
    noisy: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetAnswer:
    """Whether a SubNet keeps a budget on a device, and the size that it may have.

    verdict: "already met" by the network itself; "yes" by smaller SubNets; "no" if the smallest one takes longer; "unknown"
    if nothing could be timed. share_of_macs, macs, parameters: of the largest SubNet within the budget, interpolated between
    measured SubNets; None without one. subnet: the largest measured SubNet within the budget.
    """

    budget_ms: float
    verdict: Verdict
    share_of_macs: float | None = None
    macs: int | None = None
    parameters: int | None = None
    subnet: TimedSubNet | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFeasibility:
    """The measured SubNets of a device from the smallest to the largest, which is the network itself, and its budgets."""

    name: str
    subnets: tuple[TimedSubNet, ...]
    budgets: tuple[BudgetAnswer, ...]

    @property
    def smallest(self) -> TimedSubNet:
        """The smallest SubNet."""
        return self.subnets[0]

    @property
    def largest(self) -> TimedSubNet:
        """The network itself."""
        return self.subnets[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feasibility:
    """Latencies and budgets on each device. No accuracy is promised: nothing was trained.

    compile_s, seconds: time [s] of the compilation alone, and of everything. `str` gives tables.
    """

    network: str
    devices: Mapping[str, DeviceFeasibility]
    compile_s: float
    seconds: float

    def __str__(self) -> str:
        """A table of SubNets and one of budgets, for each device, as plain text."""
        console = PlainConsole(file=io.StringIO(), width=WIDTH, color_system=None, highlight=False, markup=False)
        for device in self.devices.values():
            console.print(*_tables(self.network, device), sep="\n")
        assert isinstance(console.file, io.StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()).strip()


@dataclass(frozen=True, slots=True)
class AskedDevice:
    """A device by name. client: its client with its lease, held while SubNets are timed."""

    name: str
    client: Callable[[], AbstractContextManager[AgentClient]]


def compiled(model: nn.Module | str | Path, example: Example | None = None) -> tuple[str, SuperNet]:
    """The name of a network and its SuperNet, with the weights that it has; random ones for a name of timm.

    UserError: no such network, or it does not take the example. TailorError: the network cannot be read.
    """
    given = None if example is None else _tensors(example)
    if isinstance(model, nn.Module):
        if given is None:
            raise UserError("example", "got None", allowed="one sample with batch axis 1, as the network takes it")
        return type(model).__name__, _of_module(model, given)
    if not isinstance(model, str | Path):
        raise UserError("model", f"got {type(model).__name__}", allowed=NETWORKS)
    if Path(model).suffix == ONNX:
        return Path(model).name, _of_file(Path(model), given)
    if isinstance(model, Path) or Path(model).exists():
        raise UserError("model", f"got '{model}'", allowed=NETWORKS, next_step="export it to ONNX")
    if fault := unknown(model):
        raise UserError("model", fault[0], allowed=fault[1], next_step="see timm.list_models()")
    known = timm.get_pretrained_cfg(model)
    shape = (1, *(known.input_size if known else (3, 224, 224))) if given is None else _image_shape(given)
    classes = (known.num_classes if known else None) or 1000
    module = create_timm(ModelSettings(name=model), classes, shape[1], shape[-1])
    return model, _of_module(module, torch.zeros(shape) if given is None else given)


def _tensors(example: Example) -> Any:
    """The example with tensors in the place of arrays."""
    if isinstance(example, torch.Tensor):
        return example
    if isinstance(example, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(example))
    if isinstance(example, Mapping):
        return {name: _tensors(one) for name, one in example.items()}
    if isinstance(example, tuple | list):
        return tuple(map(_tensors, example))
    allowed = "a tensor or array with batch axis 1, or one for each input"
    raise UserError("example", f"got {type(example).__name__}", allowed=allowed)


def _each(given: Any) -> list[torch.Tensor]:
    return list(given.values() if isinstance(given, Mapping) else given if isinstance(given, tuple) else (given,))


def _shapes(shapes: Iterable[Sequence[int]]) -> str:
    return ", ".join(f"({', '.join(map(str, shape))})" for shape in shapes)


def _image_shape(given: Any) -> tuple[int, ...]:
    shapes = [tuple(one.shape) for one in _each(given)]
    if len(shapes) != 1 or len(shapes[0]) != 4:
        raise UserError(
            "example", f"got {_shapes(shapes)}", allowed="one image (1, C, H, W), as timm's networks take it"
        )
    return shapes[0]


def _of_module(module: nn.Module, given: Any) -> SuperNet:
    try:
        return tailor_ir.compile(module, given)
    except tailor_ir.ImportFailed:
        _refuse_untaken(module, given)
        raise


def _refuse_untaken(module: nn.Module, given: Any) -> None:
    """UserError if the network does not run on the example."""
    try:
        module = copy.deepcopy(module).eval()
        with torch.no_grad():
            _ = module(**given) if isinstance(given, Mapping) else module(*_each(given))
    except Exception as error:
        got = f"network '{type(module).__name__}' does not take {_shapes(one.shape for one in _each(given))}"
        hint = "give one sample with batch axis 1, as the network takes it"
        raise UserError("example", f"{got} ({shortened(error)})", next_step=hint) from error


def _of_file(path: Path, given: Any) -> SuperNet:
    if not path.is_file():
        raise UserError("model", f"'{path}' does not exist", allowed=NETWORKS)
    net = tailor_ir.compile(path, given)
    own = net.input_shapes(net.max_config)
    if given is not None:
        ordered = [given[name] for name in own] if isinstance(given, Mapping) else _each(given)
        got = [tuple(one.shape) for one in ordered]
        if [shape[1:] for shape in got] != [tuple(shape[1:]) for shape in own.values()]:
            raise UserError("example", f"got {_shapes(got)}", allowed=f"{_shapes(own.values())}, as '{path}' has it")
    return net


@dataclass(frozen=True, slots=True)
class Diagonal:
    """SubNets whose variables grow alike, each at a place of its own within one step, from the smallest to the largest.

    Few choices of resolution change multiply-accumulates in large steps, so the other variables also grow at each resolution.
    """

    net: SuperNet

    def at(self, fraction: float, resolution: int | None = None) -> Config:
        """The SubNet at a fraction of the way. resolution: the index of its choice; None: it grows like the others."""
        space = self.net.space
        steps = space.cardinalities - 1
        early = np.arange(len(steps)) * SPREAD % 1
        codes = np.minimum(np.floor(fraction * steps + early), steps).astype(np.int64)
        if space.resolution is not None and resolution is not None:
            codes[space.resolution] = resolution
        return space.decode(codes)

    def near(self, macs: float) -> Config:
        """The SubNet with about this number of multiply-accumulates whose resolution is in step with its other variables."""
        column = self.net.space.resolution
        last = 0 if column is None else int(self.net.space.cardinalities[column]) - 1
        found = []
        for resolution in range(last + 1):
            fraction = self._halved(macs, resolution)
            config = self.at(fraction, resolution)
            apart = abs(math.log(self.net.macs(config) / macs))
            found.append((apart > NEAR, apart if apart > NEAR else abs(fraction - resolution / max(1, last)), config))
        return min(found, key=lambda one: one[:2])[2]

    def _halved(self, macs: float, resolution: int) -> float:
        """The fraction with about this number of multiply-accumulates, by halving the way."""
        low, high = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.net.macs(self.at(middle, resolution)) < macs else (low, middle)
        return (low + high) / 2


def _sized(net: SuperNet, name: str, config: Config) -> TimedSubNet:
    parameters = net.parameters(config)
    memory_mib = (4 * parameters + net.peak_activation_bytes(config)) / MIB
    return TimedSubNet(name=name, config=config, macs=net.macs(config), parameters=parameters, memory_mib=memory_mib)


def _between(net: SuperNet, largest: TimedSubNet, smallest: TimedSubNet) -> Iterator[TimedSubNet]:
    """Distinct SubNets between the ends."""
    seen = {net.space.digest(one.config) for one in (largest, smallest)}
    for part in BETWEEN:
        config = Diagonal(net).near(smallest.macs + part * (largest.macs - smallest.macs))
        if (digest := net.space.digest(config)) not in seen:
            seen.add(digest)
            yield _sized(net, "in between", config)


def measured(
    net: SuperNet, devices: Sequence[AskedDevice], budgets_ms: Sequence[float], until_s: float
) -> dict[str, DeviceFeasibility]:
    """The answer of each device by name.

    The largest and the smallest SubNet are timed on every device. Others follow while they are expected to end before
    `until_s`, by `time.monotonic`. A device that fails has the reason in place of latencies.
    """
    largest, smallest = _sized(net, "largest", net.max_config), _sized(net, "smallest", net.min_config)
    ends = (largest,) if net.space.digest(largest.config) == net.space.digest(smallest.config) else (largest, smallest)
    found: dict[str, list[TimedSubNet]] = {}
    took_s: dict[str, float] = {}
    for device in devices:
        start_s = time.monotonic()
        found[device.name] = _timed(net, ends, device)
        took_s[device.name] = time.monotonic() - start_s
    for one in _between(net, largest, smallest):
        for device in devices:
            expected_s = took_s[device.name] * max(LEAST_SHARE, one.macs / largest.macs)
            answers = any(known.p50_ms is not None for known in found[device.name])
            if answers and time.monotonic() + expected_s < until_s:
                found[device.name] += _timed(net, (one,), device)
    return {name: _device(name, subnets, budgets_ms) for name, subnets in found.items()}


def _device(name: str, subnets: Sequence[TimedSubNet], budgets_ms: Sequence[float]) -> DeviceFeasibility:
    largest, *others = subnets  # the network itself stays the last, whatever the others' sizes
    ordered = (*sorted(others, key=lambda one: one.macs), largest)
    return DeviceFeasibility(
        name=name, subnets=ordered, budgets=tuple(answer(budget_ms, ordered) for budget_ms in budgets_ms)
    )


def _timed(net: SuperNet, subnets: Sequence[TimedSubNet], device: AskedDevice) -> list[TimedSubNet]:
    """The SubNets with their latencies on a device, in order."""
    subjects = [Subject(str(number), net, one.config) for number, one in enumerate(subnets)]
    try:
        with device.client() as client:
            made = jobs_of(subjects, client.capabilities(), LIMITS, weights=False, bare=True)
            jobs = [job for job in made.values() if isinstance(job, ModelJob)]
            lines = {line.key: line for line in client.measure(jobs, SETTINGS)}
    except AgentError as error:
        return [replace(one, reason=str(error)) for one in subnets]
    lines |= {key: Measurement.failed(key, job) for key, job in made.items() if isinstance(job, str)}
    both = zip(subnets, (lines[subject.key] for subject in subjects), strict=True)
    return [replace(one, p50_ms=line.p50_ms, noisy=line.noisy, reason=line.reason) for one, line in both]


def answer(budget_ms: float, subnets: Sequence[TimedSubNet]) -> BudgetAnswer:
    """Whether SubNets keep a budget, from measured ones in the order of their sizes, the network itself last."""
    timed = [(one, one.p50_ms) for one in subnets if one.p50_ms is not None]
    within = [position for position, (_, p50_ms) in enumerate(timed) if p50_ms <= budget_ms]
    if not within:
        return BudgetAnswer(budget_ms=budget_ms, verdict="no" if subnets[0].p50_ms is not None else "unknown")
    (best, best_ms), largest = timed[within[-1]], subnets[-1]
    macs, parameters = float(best.macs), float(best.parameters)
    if within[-1] + 1 < len(timed):
        above, above_ms = timed[within[-1] + 1]
        part = (budget_ms - best_ms) / (above_ms - best_ms)
        macs += part * (above.macs - best.macs)
        parameters += part * (above.parameters - best.parameters)
    return BudgetAnswer(
        budget_ms=budget_ms,
        verdict="already met" if best is largest else "yes",
        share_of_macs=macs / largest.macs if largest.macs else 1.0,
        macs=round(macs),
        parameters=round(parameters),
        subnet=best,
    )


def _tables(network: str, device: DeviceFeasibility) -> Iterator[RenderableType]:
    """A table of the SubNets, and one of the budgets if there are any."""
    table = Table(title=f"{network} on {device.name}", title_justify="left", box=box.SIMPLE)
    table.add_column("SubNet")
    for column in ("latency (p50)", "MACs", "share", "parameters", "memory, estimated"):
        table.add_column(column, justify="right")
    for one in device.subnets:
        label = f"{one.name} (the network itself)" if one is device.largest else one.name
        latency = f"{milliseconds(one.p50_ms)}{' (noisy)' if one.noisy else ''}"
        share = percent(one.macs / device.largest.macs if device.largest.macs else None)
        table.add_row(label, latency, amount(one.macs), share, amount(one.parameters), f"{one.memory_mib:.3g} MiB")
    yield table
    for reason in dict.fromkeys(one.reason for one in device.subnets if one.reason):
        yield f"not timed: {reason}"
    if device.budgets:
        rows = Table(title=f"budgets on {device.name}", title_justify="left", box=box.SIMPLE)
        rows.add_column("budget", justify="right")
        rows.add_column("can it be met?")
        for budget in device.budgets:
            rows.add_row(milliseconds(budget.budget_ms), _words(budget, device))
        yield rows


def _words(budget: BudgetAnswer, device: DeviceFeasibility) -> str:
    """The answer in words."""
    match budget.verdict:
        case "already met":
            return f"already met by the network itself, {milliseconds(device.largest.p50_ms)}"
        case "no":
            return f"no: the smallest SubNet takes {milliseconds(device.smallest.p50_ms)} by the runtime's defaults"
        case "unknown":
            return f"unknown: the smallest SubNet could not be timed ({device.smallest.reason})"
    assert budget.subnet is not None
    assert budget.macs is not None
    assert budget.parameters is not None
    return (
        f"yes, by {percent(budget.share_of_macs)} of the MACs ({amount(budget.macs)}) and {amount(budget.parameters)} "
        f"parameters, interpolated between measured SubNets; one with {amount(budget.subnet.macs)} takes "
        f"{milliseconds(budget.subnet.p50_ms)}"
    )
