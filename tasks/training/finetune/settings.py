"""Settings of training, of base network and SuperNet, and of the first of two stages; mixup and CutMix of batches.

The first stage has the part of the network, and the data it is trained on before the whole is tuned.

Legend: B batch, C channels, H height, W width, K classes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from importing import Later
from profiling_agents.network.endpoint import is_loopback
from tasks.base.artifacts import OutsideKey
from tasks.data.settings import DataSettings
from tasks.evaluation.models import ModelSettings

if TYPE_CHECKING:
    import torch
    from torch.nn import functional
else:
    torch = Later("torch")
    functional = Later("torch.nn.functional")


class Mixing(BaseModel):
    """How the images of a micro-batch are mixed with each other; nothing is mixed by default.

    Sources: mixup (Zhang et al., ICLR 2018), CutMix (Yun et al., ICCV 2019).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    mixup_alpha: float = Field(default=0.0, ge=0)
    """Two images are blended by a share of Beta(alpha, alpha); 0: never."""
    cutmix_alpha: float = Field(default=0.0, ge=0)
    """A box of an image, its area drawn from Beta(alpha, alpha), is replaced by that of another image; 0: never."""
    probability: float = Field(default=1.0, ge=0, le=1)
    """Share of the micro-batches that are mixed; each by mixup or CutMix, at equal odds if both are on."""

    @property
    def is_on(self) -> bool:
        """Whether anything is mixed."""
        return self.probability > 0 and max(self.mixup_alpha, self.cutmix_alpha) > 0


def mix(
    x_BCHW: torch.Tensor, y_B: torch.Tensor, settings: Mixing, classes: int, key: tuple[int, int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mixed images and their soft labels (B, K), in the type of the images; x_BCHW itself is not changed.

    Every image is mixed with its neighbour in the micro-batch. `key` is (seed, step, place of the micro-batch in the global
    batch) and decides everything: the method, the share and the box. The global random state is not changed.
    """
    from torchvision.transforms import v2

    soft_BK = functional.one_hot(y_B, classes).to(x_BCHW.dtype)
    ways = [
        way(alpha=alpha)
        for way, alpha in ((v2.MixUp, settings.mixup_alpha), (v2.CutMix, settings.cutmix_alpha))
        if alpha > 0
    ]
    rng = np.random.default_rng(key)
    if not ways or rng.random() >= settings.probability:
        return x_BCHW, soft_BK
    way = ways[rng.integers(len(ways))]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(rng.integers(2**63)))
        mixed_BCHW, mixed_BK = way(x_BCHW, soft_BK)
    return mixed_BCHW, mixed_BK


LAST_PORT = 65535
USUAL = {"batch_size": 64, "micro_batch": 32, "processes": 2}


class TrainSettings(BaseModel):
    """Settings of the training loop, for base networks and SuperNets.

    BatchNorm uses the statistics of each micro-batch. A global batch is always split into the same micro-batches, so the loss
    curve depends on `batch_size` and `micro_batch` but not on `processes`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    epochs: int = Field(default=8, ge=1)
    most_steps: int | None = Field(default=None, ge=1)
    """Steps after which training ends, if its epochs have more; none: all of them."""
    batch_size: int = Field(default=64, ge=1)
    """Images per optimiser step, over all processes. If some of batch_size, micro_batch and processes are not given, they
    follow from the others.
    """
    micro_batch: int = Field(default=32, ge=2)
    """Images per forward pass; BatchNorm statistics are those of one micro-batch."""
    optimiser: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = Field(default=1e-3, gt=0)
    """Peak of the learning rate, after warm-up; then cosine to zero."""
    warmup_epochs: float = Field(default=1.0, ge=0)
    weight_decay: float = Field(default=0.05, ge=0)
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    mixing: Mixing = Mixing()
    """Mixup and CutMix, the same for all SubNets of a step and their teacher."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Largest norm of the whole gradient; none = not clipped."""
    average: float = Field(default=0.0, ge=0, lt=1)
    """Decay of a moving average of the weights, which is then the result; 0: the result is the last weights."""
    precision: Literal["float32", "float64", "bfloat16"] = "float32"
    """bfloat16: mixed, the weights stay in float32. float64 is for comparing runs: rounding noise of float32 grows
    exponentially over the steps."""
    channels_last: bool = False
    """Images and convolutions in channels-last layout."""
    seed: int = Field(default=0, ge=0)
    processes: int = Field(default=2, ge=1)
    """Ranks on each node."""
    nodes: int = Field(default=1, ge=1)
    """Machines that train together; the same command runs on each."""
    least_nodes: Annotated[int | None, OutsideKey("how training gets there: losses are those of all nodes")] = Field(
        default=None, ge=1
    )
    """Fewest nodes with which training continues if others are lost or have not come yet; none: all. Requires `restarts`."""
    rendezvous: Annotated[str | None, OutsideKey("where machines meet, not what they compute")] = None
    """HOST:PORT of the first node; required with several nodes."""
    insecure: Annotated[bool, OutsideKey("who can reach the ranks, not what they compute")] = False
    """true: allow nodes beyond this machine; ranks have no passwords and no encryption: who reaches them can run code."""
    restarts: Annotated[int, OutsideKey("how training gets there: it goes on from the same checkpoint")] = Field(
        default=0, ge=0
    )
    """How often ranks that died are restarted, from the last checkpoint."""
    silence_remark_s: Annotated[float, OutsideKey("what is logged when, not the weights")] = Field(default=60.0, ge=2)
    """Seconds after which a rank that does not answer is reported."""
    silence_end_s: Annotated[float, OutsideKey("when a rank is started again, not the weights")] = Field(
        default=300.0, ge=2
    )
    """Seconds after which it is killed; a forward and backward pass of one micro-batch must take less."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    recalibration_images: int = Field(default=512, ge=2)
    """Training images from which BatchNorm statistics are taken after training."""
    checkpoint_every_s: Annotated[float, OutsideKey("what a killed run loses, not the weights")] = Field(
        default=30.0, ge=0
    )

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, given: Any) -> Any:
        """Make batch, micro-batch and processes fit each other: values that are missing or null follow from the others."""
        if not isinstance(given, Mapping):
            return given
        known = {name: value for name, value in given.items() if name != "learning_rate" or value is not None}
        return {**known, **derived_batches(given)}

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches in a global batch, over all processes."""
        return self.batch_size // self.micro_batch

    def for_samples(self, count: int, run: int = 1) -> Self:
        """Sizes of batches that `count` samples fill, of whole runs of samples that follow one another, unless sizes are given.

        Several nodes keep theirs. A micro-batch has two runs or more.
        """
        if (self.batch_size, self.micro_batch, self.nodes) != (USUAL["batch_size"], USUAL["micro_batch"], 1):
            return self
        batch = min(self.batch_size, 1 << count.bit_length() - 1)
        sizes = {"batch_size": batch, "micro_batch": min(self.micro_batch, max(2, batch // 2))}
        if sizes["micro_batch"] % run:
            sizes = dict.fromkeys(sizes, run * max(2, batch // run))
        divides = sizes["batch_size"] % (sizes["micro_batch"] * self.processes) == 0
        return self.model_copy(update={**sizes, "processes": self.processes if divides else 1})

    def steps_of(self, steps_per_epoch: int) -> int:
        """The steps of the whole training."""
        steps = steps_per_epoch * self.epochs
        return steps if self.most_steps is None else min(steps, self.most_steps)

    @property
    def fewest_nodes(self) -> int:
        """The fewest nodes with which training continues."""
        return self.nodes if self.least_nodes is None else self.least_nodes

    @model_validator(mode="after")
    def _check(self) -> TrainSettings:
        if self.fewest_nodes > self.nodes or (self.fewest_nodes < self.nodes and not self.restarts):
            raise ValueError(
                f"least_nodes={self.least_nodes} with nodes={self.nodes}, restarts={self.restarts}; allowed: at most as "
                "many as nodes, and restarts=1 or more, by which those that are left go on"
            )
        for nodes in range(self.fewest_nodes, self.nodes + 1):
            ranks = self.processes * nodes
            if self.batch_size % (self.micro_batch * ranks):
                raise ValueError(
                    f"batch_size={self.batch_size} does not split evenly over {ranks} processes "
                    f"in micro-batches of {self.micro_batch}; "
                    f"allowed: multiples of {self.micro_batch * ranks}"
                )
        if (self.nodes > 1) != (self.rendezvous is not None):
            raise ValueError(
                f"nodes={self.nodes}, rendezvous={self.rendezvous}; allowed: rendezvous=HOST:PORT with several nodes, "
                "null with one"
            )
        if self.rendezvous is not None and not _is_address(self.rendezvous):
            raise ValueError(
                f"rendezvous={self.rendezvous}; allowed: HOST:PORT of the first node, the port from 1 to {LAST_PORT}"
            )
        if self.rendezvous is not None and not self.insecure and not is_loopback(_host(self.rendezvous)):
            raise ValueError(
                f"rendezvous={self.rendezvous}: ranks ask nobody for a password, and run what they are sent; allowed: an "
                "address of this machine alone, or insecure=true in a network whose every machine you trust"
            )
        return self


def derived_batches(given: Mapping[str, Any]) -> dict[str, int]:
    """Values of batch_size, micro_batch and processes, derived if not given; {} if a given value is not a positive integer.

    Processes and images per micro-batch are the most, up to the usual ones, that split the batch evenly.
    """
    known = {name: given.get(name) for name in USUAL}
    nodes = range(given.get("least_nodes") or given.get("nodes") or 1, (given.get("nodes") or 1) + 1)
    if any(value is not None and (not isinstance(value, int) or value < 1) for value in known.values()) or not nodes:
        return {}
    machines = math.lcm(*nodes)
    batch, micro, processes = known.values()
    if batch is None:
        whole = (micro or 1) * (processes or 1) * machines
        batch = whole * math.ceil(USUAL["batch_size"] / whole)
    if processes is None:
        fits = (count for count in range(USUAL["processes"], 1, -1) if _splits(batch, micro, count * machines))
        processes = next(fits, 1)
    if micro is None:
        own = batch // (processes * machines)
        divisors = [size for size in range(2, own + 1) if own % size == 0]
        micro = max((size for size in divisors if size <= USUAL["micro_batch"]), default=min(divisors, default=2))
    return {"batch_size": batch, "micro_batch": micro, "processes": processes}


def _splits(batch: int, micro: int | None, ranks: int) -> bool:
    """Whether each rank gets whole micro-batches, and at least two images."""
    return batch % (ranks * (micro or 1)) == 0 and batch // ranks >= 2


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _is_address(text: str) -> bool:
    found = re.fullmatch(r"(?:\w[\w.-]*|\[[0-9A-Fa-f:.]+\]):(\d{1,5})", text)
    return found is not None and 1 <= int(found[1]) <= LAST_PORT


Strategy = Literal["sandwich", "compound", "random", "progressive", "branches", "tune", "joint", "staged", "heads"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
FROZEN: frozenset[Strategy | None] = frozenset(["branches", "tune", "heads"])
"""Strategies that train only the own weights of alternatives or exits: the user's network stays the same, bit by bit."""
OF_BLOCKS: frozenset[Strategy] = frozenset(["branches", "tune"])
"""Strategies that train alternatives to blocks."""
OF_EXITS: frozenset[Strategy] = frozenset(["joint", "staged", "heads"])
"""Strategies that train exits, all of a SubNet in one forward pass."""
AUTO = "auto"


def _joined(value: Any) -> Any:
    """A list of strategies as comma-separated text."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


class RangeSettings(BaseModel):
    """SubNets whose accuracy is followed during training, in four ranges of multiply-accumulates."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    subnets: int = Field(default=16, ge=0)
    """Number of random SubNets, the same throughout; fewer than four: none."""
    images: int = Field(default=256, ge=1)
    """Validation images for each SubNet."""
    recalibration_images: int = Field(default=128, ge=2)
    """Training images for the BatchNorm statistics of each SubNet."""
    every_epochs: int | None = Field(default=None, ge=1)
    """Epochs between evaluations, counted from the end of each phase; none: as often as it takes a few per cent of the time, or
    never.
    """


class ExitTraining(BaseModel):
    """Training of exits: their stages, and how they are judged during training."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    weights: tuple[Annotated[float, Field(ge=0)], ...] | None = None
    """Weights of the exits' losses in `joint`, one for each, the whole network's last, e.g. [1,1,1,2]; none: equal ones."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the inputs of a head's linear layer that are dropped in training."""
    earlier: Literal["freeze", "improve"] = "freeze"
    """Treatment of the parts before the one that `staged` trains. freeze: they are constant, and cost no memory for gradients.
    improve: they are trained as well, as long as no earlier exit gets worse on validation images; else all weights go back to
    the last good ones, and earlier parts are constant from then on (AdaScale, Algorithm 1).
    """
    earlier_rate: float = Field(default=0.1, gt=0)
    """With `improve`, the factor of the learning rate of earlier parts."""
    target: tuple[Annotated[float, Field(gt=0, le=1)], ...] | None = None
    """Validation accuracies at which an exit is good enough to go on to the next part: one each, or one for all."""
    patience: int | None = Field(default=3, ge=1)
    """Judgements in a row without improvement before the next part is trained; none: a part uses all its epochs."""
    shares: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    """Shares of the epochs of `staged` for its parts, e.g. [1,1,1,2]; none: equal ones. Each part has at least one epoch."""
    images: int = Field(default=512, ge=1)
    """Validation images on which exits are judged."""
    recalibration_images: int = Field(default=256, ge=2)
    """Training images for the BatchNorm statistics in these judgements."""
    every_epochs: int = Field(default=1, ge=1)
    """Epochs between judgements, counted from the end of each phase."""


class Settings(TrainSettings):
    """Fine-tuning of a SuperNet: its strategy and its teacher."""

    strategy: Annotated[str, BeforeValidator(_joined)] = AUTO
    """sandwich: largest, smallest and random SubNets (BigNAS, ECCV 2020); compound: the random ones couple depth and width or
    expansion per stage (CompOFA, ICLR 2021); random: only random ones; progressive: only random ones, of a space that opens in
    phases (progressive shrinking of Once-for-all, ICLR 2020). Alternatives alone, the network itself frozen: branches: each by
    itself, on the network's features (AdaptiveNet, MobiCom 2023); tune: random SubNets with alternatives. Exits, all of a
    SubNet in one forward pass: joint: in the SubNets of `sandwich`; staged: in the largest one, part by part (AdaScale,
    Algorithm 1); heads: their heads alone, the network frozen. A list, e.g. [sandwich,branches,tune], gives phases. auto: for a
    space with alternatives, branches, then tune for four times as long, then heads if it has exits, too; joint if it has only
    exits; else sandwich.
    """
    phase_shares: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    """Shares of the epochs for the phases, e.g. [1,3]; none: equal ones, of a list. Each phase has at least one epoch."""
    phase_rates: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    """Factors of `learning_rate` for the phases, e.g. [1,0.3]; none: 0.7 for `tune` after another phase, else 1."""
    gentle: bool | None = None
    """Use a lower learning rate in phases that train the network's own weights. None: yes if the network was trained before (an
    .onnx file, published weights, a checkpoint, `trained`, or base.epochs=0) and no `learning_rate` is given.
    """
    random_subnets: int = Field(default=1, ge=0)
    branches_per_step: int | None = Field(default=None, ge=1)
    """Random alternatives per step of `branches`, of different blocks if possible; none: one for each block."""
    teacher: Literal["largest", "base"] = "largest"
    """The source of soft labels: the largest SubNet in the same step if the strategy trains (in-place) or freezes it, or a
    frozen copy of the network before fine-tuning, for all SubNets.
    """
    distillation: float | None = Field(default=None, ge=0, le=1)
    """Weight of the teacher's soft labels in the loss; the rest is the labels'. None: 1. Without teacher=base 0 for losses of
    the user's own (`LearningProblem.distils`), and in `tune`, whose alternatives start close to the network's results and
    whose steps then take three quarters of the time.
    """
    divergence: Literal["kl", "alpha"] = "kl"
    """Divergence from the teacher: Kullback-Leibler, or the adaptive alpha-divergence (AlphaNet, ICML 2021)."""
    exits: ExitTraining = ExitTraining()
    """Settings of `joint`, `staged` and `heads`."""
    memory_mib: Annotated[
        float | None, OutsideKey("what steps need, not the weights: they are the same, bit by bit")
    ] = Field(default=None, gt=0)
    """Budget of each process for the tensors of a step [MiB]: weights, gradients, optimiser, images, activations; CPU only.
    Activations that do not fit wait on disk, in the run's folder. None: plain steps.
    """
    ranges: Annotated[RangeSettings, OutsideKey("what is reported of a training, not the weights")] = RangeSettings()
    """Latency-range accuracy (AdaptiveNet, MobiCom 2023)."""

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        """The strategy of each phase; empty for `auto`."""
        names = [name.strip() for name in self.strategy.split(",")]
        return tuple(strategy for name in names for strategy in STRATEGIES if strategy == name)

    def soft_share(self, strategy: Strategy, distils: bool = True) -> float:
        """The weight of soft labels in the loss of a strategy. distils: the learning problem's default."""
        if self.distillation is not None:
            return self.distillation
        return 0.0 if self.teacher == "largest" and (strategy == "tune" or not distils) else 1.0

    def resolved(self, kinds: Collection[str]) -> Settings:
        """The settings with a strategy in place of `auto`. kinds: kinds of the space's variables."""
        if self.strategy != AUTO:
            return self
        if "block" not in kinds:
            return self.model_copy(update={"strategy": "joint" if set(kinds) == {"exit"} else "sandwich"})
        phases = {"branches": 1.0, "tune": 4.0} | ({"heads": 1.0} if "exit" in kinds else {})
        if self.epochs < len(phases):  # leave out the phase that matters least
            phases = {"tune": 1.0} if self.epochs == 1 else {"tune": 1.0, "heads": 1.0}
        return self.model_copy(update={"strategy": ",".join(phases), "phase_shares": tuple(phases.values())})

    @model_validator(mode="after")
    def _check_strategy(self) -> Settings:
        names = [name.strip() for name in self.strategy.split(",")]
        if names != [AUTO] and not set(names) <= set(STRATEGIES):
            raise ValueError(f"strategy={self.strategy}; allowed: {AUTO}, or one or several of {', '.join(STRATEGIES)}")
        if len(names) > self.epochs:
            raise ValueError(f"strategy={self.strategy} with epochs={self.epochs}; allowed: an epoch or more for each")
        for option, example in (("phase_shares", "[1,3]"), ("phase_rates", "[1,0.3]")):
            given = getattr(self, option)
            if given is not None and (names == [AUTO] or len(given) != len(names)):
                raise ValueError(
                    f"{option}={list(given)} with strategy={self.strategy}; allowed: a number for each strategy of a list, "
                    f"as strategy=[branches,tune] {option}={example}"
                )
        if "staged" in names and self.average:
            raise ValueError(
                f"average={self.average} with strategy=staged, which takes the best weights of each part; allowed: average=0"
            )
        for name in {"random", "progressive", "tune"}.intersection(names):
            if self.random_subnets == 0:
                raise ValueError(f"strategy={name} needs random_subnets of at least 1")
        for name in {"random", "progressive"}.intersection(names):
            if self.teacher == "largest" and self.divergence != "kl":
                raise ValueError(
                    f"divergence={self.divergence} without a teacher: strategy={name} does not train the largest "
                    "SubNet in each step; allowed: teacher=base, or divergence=kl"
                )
        return self


class BaseSettings(TrainSettings):
    """Training of the base network."""

    epochs: int = Field(default=8, ge=0)
    """0: the network is used without training, even if its weights are random."""


class PretrainingSettings(BaseModel):
    """The backbone and the first data. The run's `data` are the second."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    backbone: str | None = Field(default=None, pattern=r"^\w+(\.\w+)*$")
    """Path of the backbone in the network, such as backbone or backbone.body; None: there is no first stage."""
    data: DataSettings = DataSettings(kind="glyphs")
    """The first data: images with a class each."""
    base: BaseSettings = BaseSettings()
    """Training of the backbone as a classifier, if the network has no weights."""
    finetune: Settings = Settings(teacher="base")
    """Training of the backbone's SuperNet. With teacher=base the largest SubNet, too, learns from the original backbone, so
    that it stays close to the features that the head knows.
    """
    classifier_images: int = Field(default=2048, ge=2)
    """Training images of the first data for fitting the linear layer over the backbone."""

    def classifier(self, model: ModelSettings) -> ModelSettings:
        """Settings of a network's backbone as a classifier, from random weights."""
        return model.model_copy(update={"backbone": self.backbone, "checkpoint": None})
