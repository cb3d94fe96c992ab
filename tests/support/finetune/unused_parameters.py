"""One training step in which the last forward pass does not use every parameter; run under torchrun.

`torchrun … unused_parameters.py JOB.json OUT.safetensors`: rank 0 writes the parameters after the step.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import distributed, nn

from tailor_ir import SuperNet
from tasks.data import load
from tasks.data.source import Inputs, answers
from tasks.training.finetune.job import Job
from tasks.training.finetune.loop import Trainer
from tasks.training.finetune.networks import Forward, Judge, Role
from tasks.training.finetune.numerics import loss_of
from tasks.training.finetune.settings import TrainSettings


class Branches(nn.Module):
    """A shared layer, then one of two branches; `idle` belongs to none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared = nn.Linear(64, 16)
        self.first = nn.Linear(16, 10)
        self.last = nn.Linear(16, 10)
        self.idle = nn.Linear(16, 10)
        self.branch = self.first

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.branch(torch.relu(self.shared(x_BCHW.flatten(1))))


class BranchNetwork:
    """`first` is trained by the first SubNet only, `last` by the last one only, `idle` by none."""

    def __init__(self, settings: TrainSettings) -> None:
        self.module: nn.Module = Branches()
        self.runner = self.module
        self.net: SuperNet | None = None
        self.settings = settings
        self.teacher: nn.Module | None = None
        self.judge: Judge | None = None
        self.base_size = (8, 8)

    def undecayed(self) -> list[torch.Tensor]:
        return []

    def slowed(self) -> tuple[list[torch.Tensor], float]:
        return [], 1.0

    def begin(self, batches: Iterable[Inputs]) -> None:
        """There is nothing to prepare."""

    def roles(self, step: int) -> list[Role]:
        return [Role("first", {}, False), Role("last", {}, False)]

    def losses(
        self, roles: Sequence[Role], x: Inputs, target: torch.Tensor, forward: Forward
    ) -> Iterator[torch.Tensor]:
        for role in roles:
            self.module.branch = self.module.get_submodule(role.name)
            yield loss_of(answers(forward, x), target, self.settings)


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    job = Job.model_validate_json(Path(sys.argv[1]).read_text())
    network = BranchNetwork(job.settings)
    Trainer(job, network, load(job.data, "train"), torch.device("cpu")).run()
    if distributed.get_rank() == 0:
        names = ("shared", "first", "last", "idle")
        save_file({name: network.module.get_parameter(f"{name}.weight").detach() for name in names}, sys.argv[2])
    distributed.barrier()
    distributed.destroy_process_group()
