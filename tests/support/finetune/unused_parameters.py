"""One training step in which the last forward pass does not use every parameter; run under torchrun.

`torchrun … unused_parameters.py JOB.json OUT.safetensors`: rank 0 writes the parameters after the step.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import distributed, nn

from tasks.data import load
from tasks.data.batches import Inputs, answers
from tasks.training.finetune.job import Job
from tasks.training.finetune.loop import Trainer
from tasks.training.finetune.networks import Forward, Role, Trainable
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


class BranchNetwork(Trainable):
    """`first` is trained by the first SubNet only, `last` by the last one only, `idle` by none."""

    def __init__(self, settings: TrainSettings) -> None:
        super().__init__(Branches(), (8, 8), lambda step: [Role("first", {}, False), Role("last", {}, False)])
        self.settings = settings

    def losses(
        self, roles: Sequence[Role], x_BCHW: Inputs, target: torch.Tensor, forward: Forward
    ) -> Iterator[torch.Tensor]:
        for role in roles:
            self.module.branch = self.module.get_submodule(role.name)
            yield loss_of(answers(forward, x_BCHW), target, self.settings)


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
