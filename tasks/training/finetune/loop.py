"""The training loop of one rank. Legend: B batch, C channels, H height, W width, K classes."""

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tasks.base.artifacts import append_line
from tasks.base.errors import UserError
from tasks.data import Batch, Dataset, EpochPart
from tasks.data.batches import Inputs, Nested, each, only, pieces, samples_in, tensors
from tasks.data.dataset import prefetched
from tasks.data.problems import require
from tasks.data.samples import placed
from tasks.evaluation.subnets import EvaluationData, EvaluationResources
from tasks.training.finetune import checkpoint
from tasks.training.finetune.checkpoint import rewind
from tasks.training.finetune.job import Job, TrainingPhase
from tasks.training.finetune.memory import BudgetedSteps
from tasks.training.finetune.networks.record import Role, Trainable
from tasks.training.finetune.numerics import mixed_precision
from tasks.training.finetune.ranges import watch_of
from tasks.training.finetune.ranks import Move, Phase, unseen
from tasks.training.finetune.settings import FROZEN, OF_EXITS, ExitTraining, Settings, TrainSettings, mix
from tasks.training.memory import tensors_of

MOST_TRIED = 2
"""Micro-batches in a trial of a plan for a memory budget: two, because the last one exchanges gradients."""


def learning_rate(settings: TrainSettings, step: int, total_steps: int, steps_per_epoch: int) -> float:
    """Linear warm-up, then cosine to zero."""
    warmup = settings.warmup_epochs * steps_per_epoch
    if step < warmup:
        return settings.learning_rate * (step + 1) / (warmup + 1)
    done = (step - warmup) / max(1, total_steps - warmup)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


def make_optimiser(
    module: nn.Module,
    settings: TrainSettings,
    undecayed: Sequence[torch.Tensor] = (),
    slowed: tuple[Sequence[torch.Tensor], float] = ((), 1.0),
) -> torch.optim.Optimizer:
    """AdamW or SGD with Nesterov momentum; no weight decay on vectors (biases, normalisation) and on `undecayed`.

    slowed: parameters, and the factor of their learning rate.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    spared = set(undecayed)
    assert spared <= set(parameters), "another device has other parameters"
    slow = set(slowed[0])
    kinds: dict[tuple[bool, bool], list[nn.Parameter]] = {(True, False): [], (False, False): []}
    if slow:
        kinds |= {(True, True): [], (False, True): []}
    for parameter in parameters:
        kinds[parameter.ndim > 1 and parameter not in spared, parameter in slow].append(parameter)
    groups = [
        {"params": own, "weight_decay": settings.weight_decay if decays else 0.0, "factor": slowed[1] if slows else 1.0}
        for (decays, slows), own in kinds.items()
    ]
    if settings.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=settings.learning_rate, momentum=0.9, nesterov=True, fused=True)
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)


@dataclass(frozen=True, slots=True)
class Finished:
    """A step whose losses may still be on their way from the device. accuracies: results of evaluations after it, by name."""

    step: int
    rate: float
    roles: list[Role]
    losses: torch.Tensor
    images_per_s: float
    accuracies: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    """Peak of the tensors of a step [MiB], by name, if it was counted."""


class Trainer:
    """One rank's share of a training phase, wrapped once in DistributedDataParallel.

    Each step has several losses, for example of SubNets, over several micro-batches. Only the last backward pass of a step
    exchanges gradients: DDP's reducer then sends the sum that all passes of the step have accumulated. That covers parameters
    that only an earlier pass used, since the reducer marks used parameters over the whole `no_sync` session.
    """

    def __init__(
        self,
        job: Job,
        network: Trainable,
        dataset: Dataset,
        device: torch.device,
        move: Move = unseen,
        phase: TrainingPhase | None = None,
        validation: Dataset | None = None,
    ) -> None:
        """move: callback with the rank's position and step. phase: None means the only phase of the job.

        validation: images on which SubNets are evaluated during training, if the job asks for it.
        """
        self.job = job
        self.phase = job.phases[0] if phase is None else phase
        self.move = move
        self.settings = job.settings
        self.network = network
        self.dataset = dataset
        if self.settings.mixing.is_on:
            require(dataset.problem, "mixing", "mixing", "leave mixup_alpha and cutmix_alpha at 0")
            dataset.form.require("mixing", "mixing", "leave mixup_alpha and cutmix_alpha at 0")
        self.device = device
        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        self.first_of_node = int(os.environ["LOCAL_RANK"]) == 0
        mixed = self.settings.precision == "bfloat16"
        self.dtype = torch.float32 if mixed else getattr(torch, self.settings.precision)
        self.resources = EvaluationResources(device=device, dtype=self.dtype)
        self._mixed = partial(mixed_precision, device, enabled=mixed)
        self.layout = torch.channels_last if self.settings.channels_last else torch.contiguous_format
        self.teacher = None if network.teacher is None else self._placed(network.teacher).requires_grad_(False).eval()
        self._placed(network.module).train()
        self.average: AveragedModel | None = None
        if self.settings.average and self.first_of_node:
            decay = get_ema_multi_avg_fn(self.settings.average)
            self.average = AveragedModel(network.module, multi_avg_fn=decay)
        self.judged_on = self._judged_on(validation)
        self.step = checkpoint.shared_steps(job.checkpoint, first_of_node=self.first_of_node)
        self.watch = watch_of(job, self.phase, network.net, (dataset, validation), self.resources)
        self._go_on()
        self.memory = BudgetedSteps(self.settings, job.folder, device)
        self.parallel = self._wrapped()
        if self.memory.budgeted and self.step < self.phase.last_step:
            self._fit_memory()
        self._ended_s = time.monotonic()

    def _fit_memory(self) -> None:
        """Make a plan from passes over two micro-batches with the SubNets of the next step, each replaced by the largest
        SubNet.

        No SubNet without alternatives and exits has more tensors at a time than the largest one; strategies that train these
        keep their own SubNets.
        """
        roles, net = self.network.roles(self.step), self.network.net
        if net is not None and self.phase.strategy not in FROZEN | OF_EXITS:
            roles = [replace(role, config=net.max_config) for role in roles]
        x, target = self.dataset.blank(self.settings.batch_size // self.world)
        self.memory.fit(
            lambda: self._passes(self._pieces(x, target)[:MOST_TRIED], roles),
            self.network.module,
            lambda: self._there(x),
            self.optimiser,
            self.phase.first_step,
            writes_plan=self.first_of_node,
        )

    def _there(self, x: Inputs) -> list[torch.Tensor]:
        """Tensors in memory before a step, without gradients."""
        return [*tensors_of(self.network.runner, self.optimiser), *self._beside(), *tensors(x)]

    def _beside(self) -> list[torch.Tensor]:
        """Tensors in memory beside the trained network."""
        beside = [module for module in (self.teacher, self.average) if module is not None]
        return [tensor for module in beside for tensor in (*module.parameters(), *module.buffers())]

    def _staying(self) -> list[torch.Tensor]:
        """Tensors of the network, which stay in memory under any plan."""
        return [*self.network.runner.parameters(), *self.network.runner.buffers()]

    def _go_on(self) -> None:
        """Resume from the checkpoint: in the middle of the phase, or at its start with the weights of the phase before."""
        path, module, judge = self.job.checkpoint, self.network.module, self.network.judge
        if self.step > self.phase.first_step:
            checkpoint.load_model(path, module)
            if judge is not None:
                judged = checkpoint.load_judged(path)
                judge.go_on(self.judged_on, state=judged.state, kept=judged.kept)
            self.optimiser = self._new_optimiser()
            checkpoint.load_optimiser(path, self.optimiser)
            if self.average is not None:
                checkpoint.load_model(path, self.average.module, average=True)
                self.average.n_averaged.fill_(self.step - self.phase.first_step)
        else:
            if self.step:
                checkpoint.load_model(path, module, average=self.settings.average > 0)
            self.network.begin(self._calibration())
            if judge is not None:
                judge.begin(self.judged_on, self._moves)
            self.optimiser = self._new_optimiser()
        if self.first_of_node:
            rewind(self.job.history, self.step)
            if self.watch is not None:
                self.watch.rewind(self.step)

    def _new_optimiser(self) -> torch.optim.Optimizer:
        return make_optimiser(self.network.module, self.settings, self.network.undecayed(), self.network.slowed())

    def _wrapped(self) -> DistributedDataParallel:
        return DistributedDataParallel(
            self.network.runner,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            broadcast_buffers=False,
            find_unused_parameters=True,
            gradient_as_bucket_view=True,
        )

    def _judged_on(self, validation: Dataset | None) -> EvaluationData:
        """The images that a judge evaluates on; training images if there are no validation images."""
        exits = self.settings.exits if isinstance(self.settings, Settings) else ExitTraining()
        return EvaluationData(
            validation or self.dataset,
            self.dataset,
            batch_size=self.settings.micro_batch,
            limit=exits.images,
            recalibration_images=exits.recalibration_images,
            resources=self.resources,
        )

    def _moves(self) -> None:
        self.move(Phase.TRAINING, self.step)

    def _calibration(self) -> Iterator[Inputs]:
        """Training images for BatchNorm statistics, in the network's input size."""
        images = self.settings.recalibration_images
        data = EvaluationData(self.dataset, self.dataset, recalibration_images=images, resources=self.resources)
        yield from data.calibration(self.network.base_size)

    def _placed(self, module: nn.Module) -> nn.Module:
        return module.to(self.device, self.dtype).to(memory_format=self.layout)

    def run(self) -> None:
        """Train to the phase's last step; the first rank of each node writes history and checkpoints.

        Losses are read one step late, so that the host does not wait for the device.
        """
        saved_s = self._ended_s = time.monotonic()
        before: Finished | None = None
        self.move(Phase.READING, self.step + 1)
        with closing(prefetched(self._batches(), self.device)) as batches:
            for x, target in batches:
                finished = self.train_step(x, target)
                self._record(before)
                before = self._judged(self._watched(finished))
                last = self.step == self.phase.last_step
                due = last or time.monotonic() - saved_s >= self.settings.checkpoint_every_s
                if self.first_of_node and due:
                    self._record(before)
                    before = None
                    self.move(Phase.WRITING, self.step)
                    self._save()
                    saved_s = time.monotonic()
                if last:
                    break
                self.move(Phase.READING, self.step + 1)
        self._record(before)
        self.memory.close()
        self.move(Phase.ENDING, self.step + 1)

    def _watched(self, finished: Finished) -> Finished:
        """The step with accuracies of SubNets, if an evaluation is due."""
        if self.watch is None or not self.watch.is_due(self.step):
            return finished
        accuracies = self.watch.measure(self.step, writes=self.first_of_node, move=self._moves)
        self._ended_s = time.monotonic()
        return replace(finished, accuracies=accuracies)

    def _judged(self, finished: Finished) -> Finished:
        """The step with the judge's accuracies, if a judgement is due; the judge may end the phase and skip its other steps."""
        judge = self.network.judge
        if judge is None or not judge.is_due(self.step):
            return finished
        verdict = judge.judge(self.step, self._moves)
        if verdict.changed:
            self.optimiser = self._new_optimiser()
            self.parallel = self._wrapped()
        if verdict.ended:
            self.step = self.phase.last_step
        self._ended_s = time.monotonic()
        return replace(finished, accuracies=finished.accuracies | verdict.accuracies)

    def _save(self) -> None:
        self._check_weights()
        average, judge = None if self.average is None else self.average.module, self.network.judge
        judged = None if judge is None else checkpoint.Judged(judge.state(), judge.kept)
        checkpoint.save(self.job.checkpoint, self.network.module, self.optimiser, self.step, average, judged)

    def _record(self, finished: Finished | None) -> None:
        """Append a line to the history. UserError when a loss is not finite."""
        if finished is None:
            return
        losses = _by_role(finished.roles, finished.losses.tolist())
        if not all(map(math.isfinite, losses.values())):
            raise UserError(
                f"training step {finished.step}",
                f"the loss is {losses['loss']}",
                next_step="lower learning_rate or set clip_norm",
            )
        if self.first_of_node:
            epoch = (finished.step - 1) // self.job.steps_per_epoch
            line = {"step": finished.step, "epoch": epoch, "learning_rate": finished.rate, **losses}
            line |= {"images_per_s": round(finished.images_per_s, 1), **finished.accuracies, **finished.memory}
            append_line(self.job.history, line)

    def _check_weights(self) -> None:
        """UserError when a weight is not finite although the loss was; the checkpoint before stays."""
        weights = list(self.network.module.parameters())
        if not torch.stack([weight.isfinite().all() for weight in weights]).all():
            raise UserError(
                f"training step {self.step}",
                "a weight is no number any more",
                next_step="lower learning_rate or set clip_norm",
            )

    def _batches(self) -> Iterator[Batch]:
        first, skip = divmod(self.step, self.job.steps_per_epoch)
        own = EpochPart(rank=self.rank, world=self.world, last=self.job.last_batch)
        for epoch in range(first, math.ceil(self.phase.last_step / self.job.steps_per_epoch)):
            yield from self.dataset.batches(
                self.settings.batch_size,
                seed=self.settings.seed,
                epoch=epoch,
                part=replace(own, start=skip if epoch == first else 0),
            )

    def train_step(self, x: Inputs, target: Nested) -> Finished:
        """One optimiser step on this rank's slice, with the mean losses over the global batch."""
        done = self.step - self.phase.first_step
        rate = self.phase.rate * learning_rate(self.settings, done, self.phase.steps, self.job.steps_per_epoch)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["factor"]
        roles = self.network.roles(self.step)
        with self.memory.counted(lambda: self._there(x)):
            losses = self._passes(self._pieces(x, target), roles)
            self._update()
        if self.average is not None:
            self.average.update_parameters(self.network.module)
        distributed.all_reduce(losses)
        self.step += 1
        started_s, self._ended_s = self._ended_s, time.monotonic()
        images_per_s = samples_in(x) * self.world / (self._ended_s - started_s)
        return Finished(self.step, rate, roles, losses / self.world, images_per_s, memory=self.memory.measured())

    def _pieces(self, x: Inputs, target: Nested) -> list[Batch]:
        """The micro-batches of this rank's slice; a smaller last batch has as many, but smaller ones."""
        count = self.settings.micro_batches // self.world
        size = max(2, math.ceil(samples_in(x) / count))
        return list(zip(pieces(x, size), pieces(target, size), strict=True))

    def _passes(self, parts: list[Batch], roles: list[Role]) -> torch.Tensor:
        """Forward and backward passes of a step, with the exchange of gradients; returns the losses on this rank."""
        losses = torch.zeros(sum(max(1, len(role.parts)) for role in roles), device=self.device)
        for index, (x, y) in enumerate(parts):
            place = self.rank * len(parts) + index
            self._seed(place)
            x, target = self._prepared(x, y, place)
            losses += self._micro_step(x, target, roles, 1 / len(parts), last=index == len(parts) - 1)
        return losses

    def _update(self) -> None:
        """A step of the optimiser."""
        if self.settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.network.module.parameters(), self.settings.clip_norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def _prepared(self, x: Inputs, target: Nested, place: int) -> Batch:
        """Samples on the device with their targets, or mixed samples with soft labels (B, K).

        place: position of the micro-batch in the global batch.
        """
        x, target = placed(x, self.device, self.dtype), each(target, lambda one: one.to(self.device))
        if self.settings.mixing.is_on:
            key = (self.settings.seed, self.step, place)
            x, target = mix(only(x), only(target), self.settings.mixing, self.dataset.classes, key)
        return each(x, lambda one: one.to(memory_format=self.layout) if one.ndim == 4 else one), target

    def _micro_step(self, x: Inputs, target: Nested, roles: list[Role], share: float, *, last: bool) -> torch.Tensor:
        """Forward and backward pass of every role on one micro-batch; returns the losses times `share`."""
        losses = self.network.losses(roles, x, target, self.parallel)
        found = []
        for index, role in enumerate(roles):
            self.move(Phase.TRAINING, self.step + 1)
            exchange = last and index == len(roles) - 1
            with nullcontext() if exchange else self.parallel.no_sync():
                with self.memory.forward(lambda: [*self._staying(), *tensors(x)]), self._mixed():
                    loss = next(losses) * share
                role.total(loss).backward()
            found.append(loss.detach().reshape(-1))
        return torch.cat(found)

    def _seed(self, micro_batch: int) -> None:
        """Make dropout and the like depend only on the step and the micro-batch's place in the global batch."""
        torch.manual_seed((self.settings.seed * 1_000_003 + self.step) * 65_537 + micro_batch)


def _by_role(roles: list[Role], losses: list[float]) -> dict[str, float]:
    """Mean losses by the names of roles and their parts. losses: one for each role, or for each of its parts."""
    grouped: dict[str, list[float]] = {}
    totals = []
    left = iter(losses)
    for role in roles:
        own = [(name, weight, next(left)) for name, weight in role.parts or ((role.name, 1.0),)]
        totals.append(sum(weight * loss for _, weight, loss in own))
        grouped.setdefault(role.name, []).append(totals[-1])
        for name, _, loss in own if role.parts else ():
            grouped.setdefault(name, []).append(loss)
    means = {name: sum(values) / len(values) for name, values in grouped.items()}
    by_name = {f"loss_{name}": value for name, value in means.items()}
    return {"loss": sum(totals) / len(totals), **({} if list(means) == ["network"] else by_name)}
