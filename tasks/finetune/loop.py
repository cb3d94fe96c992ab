"""The training loop of one rank. Legend: B batch, C channels, H height, W width, K classes."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tasks.artifacts import append_line
from tasks.data import Batch, Dataset
from tasks.data.images import resize
from tasks.finetune import checkpoint
from tasks.finetune.job import Job
from tasks.finetune.networks import Network
from tasks.finetune.sampling import Role
from tasks.finetune.settings import Settings, TrainSettings


def learning_rate(settings: TrainSettings, step: int, total_steps: int, steps_per_epoch: int) -> float:
    """Linear warm-up, then cosine to zero."""
    warmup = settings.warmup_epochs * steps_per_epoch
    if step < warmup:
        return settings.learning_rate * (step + 1) / (warmup + 1)
    done = (step - warmup) / max(1, total_steps - warmup)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


def make_optimiser(
    module: nn.Module, settings: TrainSettings, undecayed: Sequence[torch.Tensor] = ()
) -> torch.optim.Optimizer:
    """AdamW or SGD with Nesterov momentum; no weight decay on vectors (biases, normalisation) and on `undecayed`."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    spared = set(undecayed)
    assert spared <= set(parameters), "another device has other parameters"
    decayed = [p.ndim > 1 and p not in spared for p in parameters]
    groups = [
        {"params": [p for p, d in zip(parameters, decayed, strict=True) if d], "weight_decay": settings.weight_decay},
        {"params": [p for p, d in zip(parameters, decayed, strict=True) if not d], "weight_decay": 0.0},
    ]
    if settings.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=settings.learning_rate, momentum=0.9, nesterov=True, fused=True)
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)


def loss_of(
    logits_BK: torch.Tensor, y_B: torch.Tensor, teacher_BK: torch.Tensor | None, settings: TrainSettings
) -> torch.Tensor:
    """Smoothed cross-entropy, mixed with that of the teacher's soft labels where there is a teacher."""
    weight = settings.distillation if isinstance(settings, Settings) and teacher_BK is not None else 0.0
    loss = torch.zeros((), device=logits_BK.device)
    if weight < 1:
        loss = loss + (1 - weight) * functional.cross_entropy(logits_BK, y_B, label_smoothing=settings.label_smoothing)
    if weight > 0:
        assert teacher_BK is not None
        loss = loss + weight * functional.cross_entropy(logits_BK, teacher_BK.softmax(1))
    return loss


class Trainer:
    """One rank's share of the training, wrapped once in DistributedDataParallel.

    Each step runs several SubNets over several micro-batches. Only the last backward pass of a step exchanges
    gradients: DDP's reducer then sends what all passes of the step have accumulated, also for parameters that
    only an earlier pass used, since it marks used parameters over the whole `no_sync` session.
    """

    def __init__(self, job: Job, network: Network, dataset: Dataset, device: torch.device) -> None:
        self.job = job
        self.settings = job.settings
        self.network = network
        self.dataset = dataset
        self.device = device
        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        self.dtype = getattr(torch, self.settings.precision)
        network.module.to(device, self.dtype).train()
        self.optimiser = make_optimiser(network.module, self.settings, network.undecayed())
        self.step = checkpoint.finished_steps(job.checkpoint)
        if self.step:
            checkpoint.load_model(job.checkpoint, network.module)
            checkpoint.load_optimiser(job.checkpoint, self.optimiser)
        self.parallel = DistributedDataParallel(
            network.module,
            device_ids=[device] if device.type == "cuda" else None,
            broadcast_buffers=False,
            find_unused_parameters=True,
        )

    def run(self) -> None:
        """Train to the last step; rank 0 writes history and checkpoints."""
        saved_s = started_s = time.monotonic()
        for x_BCHW, y_B in self._batches():
            rate = learning_rate(self.settings, self.step, self.job.total_steps, self.job.steps_per_epoch)
            losses = self._train_step(x_BCHW, y_B, rate)
            self.step += 1
            now_s = time.monotonic()
            last = self.step == self.job.total_steps
            if self.rank == 0:
                self._record(rate, losses, self.settings.batch_size / (now_s - started_s))
                if last or now_s - saved_s >= self.settings.checkpoint_every_s:
                    checkpoint.save(self.job.checkpoint, self.network.module, self.optimiser, self.step)
                    saved_s = now_s
            started_s = now_s
            if last:
                return

    def _record(self, rate: float, losses: dict[str, float], images_per_s: float) -> None:
        epoch = (self.step - 1) // self.job.steps_per_epoch
        line = {"step": self.step, "epoch": epoch, "learning_rate": rate, **losses}
        append_line(self.job.history, {**line, "images_per_s": round(images_per_s, 1)})

    def _batches(self) -> Iterator[Batch]:
        first, skip = divmod(self.step, self.job.steps_per_epoch)
        for epoch in range(first, self.settings.epochs):
            yield from self.dataset.batches(
                self.settings.batch_size,
                seed=self.settings.seed,
                epoch=epoch,
                rank=self.rank,
                world=self.world,
                start=skip if epoch == first else 0,
            )

    def _train_step(self, x_BCHW: torch.Tensor, y_B: torch.Tensor, rate: float) -> dict[str, float]:
        """One optimiser step on this rank's slice; mean losses over the global batch, by role."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        roles = self.network.roles(self.step)
        pieces = list(zip(x_BCHW.split(self.settings.micro_batch), y_B.split(self.settings.micro_batch), strict=True))
        losses = torch.zeros(len(roles), device=self.device)
        for index, (x, y) in enumerate(pieces):
            self._seed(self.rank * len(pieces) + index)
            losses += self._micro_step(
                x.to(self.device, self.dtype), y.to(self.device), roles, 1 / len(pieces), last=index == len(pieces) - 1
            )
        if self.settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.network.module.parameters(), self.settings.clip_norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        distributed.all_reduce(losses)
        return _by_role(roles, (losses / self.world).tolist())

    def _micro_step(
        self, x_BCHW: torch.Tensor, y_B: torch.Tensor, roles: list[Role], share: float, *, last: bool
    ) -> torch.Tensor:
        """Forward and backward of every SubNet on one micro-batch; their losses times `share`."""
        teacher_BK: torch.Tensor | None = None
        losses = []
        for index, role in enumerate(roles):
            exchange = last and index == len(roles) - 1
            with nullcontext() if exchange else self.parallel.no_sync():
                size = self.network.activate(role)
                logits_BK = self.parallel(resize(x_BCHW, size))
                loss = loss_of(logits_BK, y_B, teacher_BK if role.distilled else None, self.settings) * share
                loss.backward()
            if index == 0:
                teacher_BK = logits_BK.detach()
            losses.append(loss.detach())
        return torch.stack(losses)

    def _seed(self, micro_batch: int) -> None:
        """Dropout and the like depend on the step and the micro-batch's place in the global batch only."""
        torch.manual_seed((self.settings.seed * 1_000_003 + self.step) * 65_537 + micro_batch)


def _by_role(roles: list[Role], losses: list[float]) -> dict[str, float]:
    grouped: dict[str, list[float]] = {}
    for role, loss in zip(roles, losses, strict=True):
        grouped.setdefault(role.name, []).append(loss)
    means = {name: sum(values) / len(values) for name, values in grouped.items()}
    if len(means) == 1:
        return {"loss": losses[0] if len(losses) == 1 else next(iter(means.values()))}
    return {"loss": sum(losses) / len(losses), **{f"loss_{name}": value for name, value in means.items()}}
