"""Costs of a run, measured here in some seconds, and the time that each of its stages is expected to take by them.

A SuperNet is compiled, trained for a few steps, and evaluated on a few samples. Its largest and its smallest SubNet are timed
on each device. The constants are the house's experience with networks of many sizes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

import tailor_ir
from flows.config import FlowConfig, RetargetConfig, RunConfig
from flows.pipeline.run import Run
from flows.pipeline.stages.spec import StageSpec
from importing import later_names
from profiling_agents.messages import MeasureSettings
from tasks.base.progress import Silent
from tasks.base.schemas.stored import Record
from tasks.data.settings import TEACHER_FILE
from tasks.evaluation.settings import EvaluationSettings
from tasks.measuring.settings import HANDLING_MS, enough_times

if TYPE_CHECKING:
    from profiling_agents.client import AgentClient
    from tailor_ir import SuperNet
    from tasks.data import Dataset, load_splits
    from tasks.data.dataset import remember
    from tasks.evaluation.models import needs_training
    from tasks.evaluation.subnets import accuracies
    from tasks.measuring import feasibility
    from tasks.measuring.operators import covering_codes
    from tasks.measuring.profile import open_table, unknown
    from tasks.measuring.subnets import validation_configs
    from tasks.prediction.sensitivity import images_of
    from tasks.training import compile as compiling
    from tasks.training import finetune
else:
    globals().update(later_names(__file__))

WATCHED = 1.05
"""Time of a training over that of its steps, since SubNets are evaluated meanwhile."""
STAGE_S = 0.4
"""Seconds around each stage."""
SETTLED = 0.7
"""Share of the longest time of a measurement after which it mostly ends."""
AGAIN = 1.3
"""Measurements that are repeated because the device was not calm, or for the reference."""
TRIALS = 1.5
"""Trials of a SubNet on a runtime whose operators have several implementations."""
ENGINE_ROUNDS = 3
SEARCH_S, SEARCH_MODIFICATION_S = 0.6, 0.005
"""Seconds of a search, and of each budget and modification."""
REFINE_S, LEARN_S = 3.0, 0.5
"""Seconds of a refinement, and of each round that learns."""
FILE_S = {"onnx": 0.3, "ncnn": 1.0}
FILE_MIB_S = 0.02
"""Seconds of writing and checking a file, and of each MiB of its weights."""
IMAGES, SUBNETS = 64, 4
"""Samples and random SubNets by which the time of an evaluation is measured."""


class DeviceCosts(Record):
    """Seconds of a device: to make and send a SubNet, and to run it; choices of its runtime's options.

    subnets: SubNets in which operators are timed, by `profile.subnets_per_operator`.
    """

    make_s: float
    run_s: float
    choices: int
    implementations: bool
    here: bool
    subnets: dict[int, int]


class Costs(Record):
    """Measured seconds, and sizes. image_s: of a SubNet's evaluation on one sample.

    start_s, step_s, steps: of a training, its step and its epoch. base_steps: of an epoch of the base network; 0: not trained.
    """

    compile_s: float
    image_s: float
    start_s: float = 0.0
    step_s: float = 0.0
    steps: int = 0
    base_steps: int = 0
    samples: dict[str, int]
    modifications: int
    distinct: int
    weights_mib: float
    devices: dict[str, DeviceCosts]


class PlannedStage(Record):
    """A stage with its expected seconds, and what it does in them."""

    stage: str
    seconds: float
    does: str = ""


class Forecast:
    """Expected seconds of each stage of a config, without the steps of trainings."""

    def __init__(self, costs: Costs, config: FlowConfig) -> None:
        self.costs, self.config = costs, config
        self._random = min(config.predict.random_subnets + 2, costs.distinct)

    def of(self, spec: StageSpec) -> PlannedStage:
        """A stage; those without a row below take the time around a stage."""
        own: Callable[[], tuple[float, str]] = getattr(self, f"_{spec.name}", lambda: (0.0, ""))
        seconds, does = own()
        return PlannedStage(stage=spec.name, seconds=seconds + STAGE_S * len(spec.scope.labels(self.config)), does=does)

    def _evaluation_s(self, *splits: str) -> float:
        """One SubNet on splits, with the statistics of training samples."""
        most = self.config.predict.validation_images or math.inf
        counts = [min(self.costs.samples[split], most if len(splits) == 1 else math.inf) for split in splits]
        return self.costs.image_s * (sum(counts) + self.config.predict.recalibration_images)

    def _on_devices(self, seconds: Callable[[str, DeviceCosts], float]) -> float:
        """Devices of this machine take turns; others work side by side."""
        found = {name: seconds(name, one) for name, one in self.costs.devices.items()}
        here = sum(found[name] for name, one in self.costs.devices.items() if one.here)
        return max([here, *(found[name] for name, one in self.costs.devices.items() if not one.here)])

    def _budgets(self, device: str) -> int:
        own = self.config.search.budgets_of(device)
        return self.config.search.budget_count if own is None else len(own)

    def _check(self) -> tuple[float, str]:
        return self.costs.compile_s, ""

    def _base(self) -> tuple[float, str]:
        evaluated = 2 * self._evaluation_s("validation", "test")
        return evaluated + (self.costs.start_s if self.costs.base_steps else 0.0), ""

    def _given(self) -> tuple[float, str]:
        return 2 * self._evaluation_s("validation", "test"), ""

    def _compile(self) -> tuple[float, str]:
        return 1.2 * self.costs.compile_s + 256 * self.costs.image_s, ""

    def _runtime_options(self) -> tuple[float, str]:
        settings = self.config.runtime_options
        subnets = min(settings.random_subnets + 2, self.costs.distinct)

        def seconds(name: str, device: DeviceCosts) -> float:
            timed_s = device.choices * ENGINE_ROUNDS * subnets * timing_s(device, settings.measure)
            return subnets * device.make_s + (min(timed_s, settings.limit_s) if settings.tune else 0.0)

        return self._on_devices(seconds), ""

    def _profile(self) -> tuple[float, str]:
        per_operator = self.config.profile.subnets_per_operator

        def seconds(name: str, device: DeviceCosts) -> float:
            once_s = max(device.make_s / 2, timing_s(device, self.config.profile_of(name).subnet))
            return device.subnets[per_operator] * once_s * (TRIALS if device.implementations else 1.0)

        counts = "; ".join(
            f"{device.subnets[per_operator]} SubNets on {name}" for name, device in self.costs.devices.items()
        )
        return self._on_devices(seconds), counts

    def _latency(self) -> tuple[float, str]:
        return self._on_devices(lambda name, device: self._timed_s(device, self._random)), f"{self._random} SubNets"

    def _timed_s(self, device: DeviceCosts, subnets: float) -> float:
        """SubNets that are timed on a device in the rounds of the predict stage."""
        rounds = self.config.predict.rounds * AGAIN
        return subnets * (device.make_s + rounds * timing_s(device, self.config.predict.measure))

    def _finetune(self) -> tuple[float, str]:
        return self.costs.start_s + 8 * self._evaluation_s("validation", "test"), ""

    def _sensitivities(self) -> tuple[float, str]:
        subnets = self.costs.modifications + self._random
        return subnets * self._evaluation_s("validation"), f"{subnets} SubNets"

    def _int8(self) -> tuple[float, str]:
        return 3 * self._random * self._evaluation_s("validation"), f"{self._random} SubNets"

    def _search(self) -> tuple[float, str]:
        each_s = SEARCH_MODIFICATION_S * self.costs.modifications
        seconds = sum(SEARCH_S + each_s * self._budgets(name) for name in self.costs.devices)
        return seconds, self._of_budgets("budgets")

    def _of_budgets(self, what: str) -> str:
        counts = {name: self._budgets(name) for name in self.costs.devices}
        same = len(set(counts.values())) == 1
        return (
            f"{next(iter(counts.values()))} {what}"
            if same
            else ", ".join(f"{n} {what} on {name}" for name, n in counts.items())
        )

    def _refine(self) -> tuple[float, str]:
        settings = self.config.refine

        def seconds(name: str, device: DeviceCosts) -> float:
            budgets = self._budgets(name)
            measured = min(budgets * settings.candidates, self.costs.distinct)
            again_s = 2 * budgets * self.config.predict.rounds * timing_s(device, self.config.predict.measure)
            learned_s = LEARN_S * min(settings.rounds, settings.candidates)
            return (
                REFINE_S
                + learned_s
                + self._timed_s(device, measured)
                + again_s
                + measured * self._evaluation_s("validation")
            )

        rounds = min(settings.rounds, settings.candidates)
        does = f"{settings.candidates} candidates of each budget in {rounds} rounds"
        return self._on_devices(seconds), does

    def _export(self) -> tuple[float, str]:
        file_s = sum(
            FILE_S.get(name.partition("_")[0], 1.0) + FILE_MIB_S * self.costs.weights_mib
            for name in self.config.export.formats
        )

        def seconds(name: str, device: DeviceCosts) -> float:
            winners = min(self._budgets(name), self.costs.distinct) + 1
            time_s = device.make_s + 2 * AGAIN * timing_s(device, self.config.export.measure)
            return winners * (time_s + file_s + self._evaluation_s("validation", "test"))

        return self._on_devices(seconds), self._of_budgets("budgets")


def timing_s(device: DeviceCosts, settings: MeasureSettings) -> float:
    """Expected seconds of one measurement of a SubNet."""
    usual_s = 1e-3 * (settings.warmup_ms + SETTLED * settings.time_cap_ms)
    least_s = (settings.warmup_runs + settings.min_samples) * device.run_s
    return 1e-3 * (HANDLING_MS + settings.layers_ms + settings.energy_ms) + max(usual_s, least_s)


def measured(config: FlowConfig, run: Run, folder: Path, per_operator: Sequence[int]) -> Costs:
    """The costs of a run, measured here in seconds; files in `folder`. UserError, TailorError: as the stages would raise.

    per_operator: values of `profile.subnets_per_operator` that a forecast may have, besides that of the config.
    """
    began_s = time.monotonic()
    supernet = config.supernet if isinstance(config, RetargetConfig) else _compiled(config, folder / "supernet")
    net = tailor_ir.load(supernet)
    compile_s = time.monotonic() - began_s
    splits = load_splits(config.data)
    if (supernet / TEACHER_FILE).is_file():
        config = config.model_copy(update={"data": config.data.model_copy(update={"teacher": supernet / TEACHER_FILE})})
    return Costs(
        compile_s=compile_s,
        image_s=_image_s(net, config, folder),
        samples={name: len(split) for name, split in splits.items()},
        modifications=compiling.sizes(net.space)["modifications"],
        distinct=net.space.distinct,
        weights_mib=4 * net.parameters(net.max_config) / 2**20,
        devices={name: _device(net, config, run, name, per_operator) for name in config.device},
        **_training_times(config, splits["train"], supernet, folder / "trial"),
    )


def _compiled(config: RunConfig, folder: Path) -> Path:
    """The folder of the SuperNet, with random weights unless it has some, and with what a training needs."""
    net = compiling.supernet_of(config.compile, config.model, config.data, None, config.space)
    net.save(folder)
    train = load_splits(config.data)["train"]
    compiling.keep_teacher(net, train, folder)
    remember(train, folder)
    return folder


def _image_s(net: SuperNet, config: FlowConfig, folder: Path) -> float:
    """Seconds of the evaluation of a SubNet on one sample, among several SubNets; the first time is warm-up."""
    images = images_of(EvaluationSettings(validation_images=IMAGES, recalibration_images=IMAGES), config.data)
    configs, seconds = validation_configs(net, SUBNETS, 0), 0.0
    net.elastic.to(images.device)
    for turn in range(2):
        began_s = time.monotonic()
        accuracies(net, configs, images, folder / f"evaluated-{turn}.jsonl", Silent())
        seconds = time.monotonic() - began_s
    net.elastic.to("cpu")
    sizes = (len(images.dataset), len(load_splits(config.data)["train"]))
    return seconds / len(configs) / sum(min(IMAGES, size) for size in sizes)


def _training_times(config: FlowConfig, train: Dataset, supernet: Path, folder: Path) -> dict[str, Any]:
    """The fields of costs about training."""
    if isinstance(config, RetargetConfig):
        return {}
    folder.mkdir()
    times = finetune.trial(config.finetune, config.data, supernet, folder)
    base = config.base.for_samples(len(train))
    trained = base.epochs and needs_training(config.model, train.classes)
    base_steps = train.planned(base.batch_size, base.micro_batches).steps if trained else 0
    step_s = WATCHED * times.step_s
    return {"start_s": times.start_s, "step_s": step_s, "steps": times.steps_per_epoch, "base_steps": base_steps}


def _device(net: SuperNet, config: FlowConfig, run: Run, name: str, per_operator: Sequence[int]) -> DeviceCosts:
    """The costs of one device, by its measurement of the largest and the smallest SubNet."""
    profile, settings = config.device[name], config.profile_of(name)
    begun_s: list[float] = []

    @contextmanager
    def exclusive() -> Iterator[AgentClient]:
        with run.devices.exclusive(name) as client:
            begun_s.append(time.monotonic())  # the device is free of other runs, and its agent has started
            yield client

    found = feasibility.measured(net, [feasibility.AskedDevice(name, exclusive)], (), 0.0)[name]
    seconds = (time.monotonic() - begun_s[0]) / len(found.subnets)
    capabilities = run.devices.capabilities(name)
    operators = {feature.digest: feature for feature in net.unique_operators()}
    assert settings.store is not None, "a device's settings have the store of the run"
    todo = set(unknown(settings, open_table(settings, settings.store, capabilities), operators).values())
    by_layer, implementations = settings.method == "in situ", "ncnn" in capabilities.formats
    run_ms = profile.batch * fmean(one.p50_ms or 0.0 for one in found.subnets)

    def subnets(most: int) -> int:
        return _covering(net, todo, most if implementations else enough_times(settings.subnet, run_ms, most))

    device = DeviceCosts(
        make_s=0.0,
        run_s=1e-3 * run_ms,
        choices=sum(
            len(option.choices) - 1 for option in capabilities.engine_options if not (by_layer and option.by_operator)
        ),
        implementations=implementations,
        here=profile.is_here,
        subnets={count: subnets(count) for count in {*per_operator, settings.subnets_per_operator}},
    )
    return device.model_copy(update={"make_s": max(0.0, seconds - timing_s(device, feasibility.SETTINGS))})


def _covering(net: SuperNet, todo: set[Any], times: int) -> int:
    """SubNets in which the operators are timed so often."""
    return len(covering_codes(net, todo, np.random.default_rng(0), times)) if todo else 0
