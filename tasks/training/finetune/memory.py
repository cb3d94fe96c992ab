"""Fine-tuning within a memory budget: the plan before the first step, its steps, and their peak compared with the plan.

The launcher reports the plans of ranks.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from tasks.base.artifacts import read_json, write_json
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.training.finetune.settings import Settings, TrainSettings
from tasks.training.memory import SavingPlan, StepMemory, StorageCount, fit, state_share


def plan_file(folder: Path, first_step: int) -> Path:
    """The file into which the first rank writes the plan of the phase that begins after `first_step` finished steps."""
    return folder / f"memory-{first_step}.json"


class PlanTeller:
    """Reports each new plan in a job's folder, in words and as metrics, and the measured peak."""

    def __init__(self, folder: Path, name: str, progress: Progress) -> None:
        self._folder, self._name, self._progress = folder, name, progress
        self._described: set[Path] = set()
        self._plan: SavingPlan | None = None
        for file in folder.glob("memory-*.json"):
            file.unlink()

    def look(self, done: int) -> None:
        """Report new plans. done: number of finished steps."""
        for file in sorted(set(self._folder.glob("memory-*.json")) - self._described):
            self._described.add(file)
            self._plan = SavingPlan(**read_json(file))
            self._progress.say(f"{self._name}: {self._plan.words()}")
            self._progress.metrics(
                {
                    "step_predicted_mib": self._plan.peak_mib,
                    "step_plain_mib": self._plan.plain_mib,
                    "step_time_factor": self._plan.time_factor,
                },
                done,
            )

    def measured(self, line: dict[str, Any]) -> None:
        """Report the measured peak beside the prediction, if `line` is of the counted step."""
        if "step_peak_mib" in line and self._plan is not None:
            self._progress.say(
                f"{self._name}: step {line['step']} took {line['step_peak_mib']:.1f} MiB; "
                f"{self._plan.peak_mib:.1f} MiB were predicted"
            )


class BudgetedSteps:
    """Carries out the plan of one phase; without a budget, steps are plain and nothing is counted."""

    def __init__(self, settings: TrainSettings, folder: Path, device: torch.device) -> None:
        self._budget_mib = settings.memory_mib if isinstance(settings, Settings) else None
        self._folder = folder
        self._memory = StepMemory(None)
        self._exchanged: list[Tensor] = []
        self._steps = 0
        self.plan: SavingPlan | None = None
        self.peak_mib: float | None = None
        if self._budget_mib is not None and device.type != "cpu":
            raise UserError(f"finetune.memory_mib={self._budget_mib:g}", f"the device is {device.type}", allowed="cpu")

    @property
    def budgeted(self) -> bool:
        """Whether there is a budget."""
        return self._budget_mib is not None

    def fit(
        self,
        passes: Callable[[], object],
        module: nn.Module,
        there: Callable[[], Sequence[Tensor]],
        optimiser: torch.optim.Optimizer,
        first_step: int,
        *,
        writes_plan: bool,
    ) -> None:
        """Make the plan before the first step of a phase, by trial steps without an update.

        passes: those of a step, with exchange of gradients. module: its gradients are dropped afterwards, and its buffers are
        restored. there: tensors in memory before a step, without gradients. optimiser: its state counts even if it does not
        exist yet. writes_plan: to the file that the launcher reads. UserError if the budget cannot be met, with the
        smallest budget that can.
        """
        assert self._budget_mib is not None
        before = [(buffer, buffer.clone()) for buffer in module.buffers()]
        trained = [weight for weight in module.parameters() if weight.requires_grad]
        state = 0.0 if optimiser.state else state_share(optimiser)
        sizes = [weight.nbytes for weight in trained]
        copied = max(sizes, default=0)  # smaller SubNets copy their part of a weight
        stand_in = torch.empty(int(state * sum(sizes)) + copied, dtype=torch.uint8)

        def step(memory: StepMemory) -> None:
            self._memory = memory
            passes()
            self._forget_gradients(trained)

        self.plan = fit(
            step,
            self._budget_mib,
            where=f"finetune.memory_mib={self._budget_mib:g}",
            given=lambda: [*there(), *self._exchanged, stand_in],
            folder=str(self._folder),
            agreed=_largest_of_ranks,
        )
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
        self._memory = StepMemory(self.plan.kept_bytes, str(self._folder))
        if writes_plan:
            write_json(plan_file(self._folder, first_step), asdict(self.plan))

    def _forget_gradients(self, trained: Sequence[nn.Parameter]) -> None:
        """Drop gradients, but remember their exchange buffers, which stay in memory."""
        self._exchanged = [weight.grad for weight in trained if weight.grad is not None]
        for weight in trained:
            weight.grad = None

    def forward(self, staying: Callable[[], Sequence[Tensor]]) -> AbstractContextManager[None]:
        """A forward pass. staying: weights and other tensors that stay in memory."""
        return self._memory.forward(staying()) if self.budgeted else nullcontext()

    @contextmanager
    def counted(self, there: Callable[[], Sequence[Tensor]]) -> Iterator[None]:
        """A step with its update. Only the second step is counted, since the optimiser's state exists by then.

        there: tensors in memory before a step, without gradients.
        """
        if self.plan is None or self._steps != 1:
            yield
        else:
            with StorageCount([*there(), *self._exchanged]) as count:
                yield
            self.peak_mib, self._exchanged = count.peak_mib, []
        self._steps += 1

    def measured(self) -> dict[str, float]:
        """Measured and predicted peak of the step just counted, for the history; {} after other steps."""
        if self.plan is None or self.peak_mib is None or self._steps != 2:
            return {}
        return {"step_peak_mib": self.peak_mib, "step_predicted_mib": self.plan.peak_mib}

    def close(self) -> None:
        """Remove activations that wait on disk."""
        self._memory.close()


def _largest_of_ranks(mib: float) -> float:
    """The maximum over all ranks, so that all make the same plan."""
    found = torch.tensor(mib, dtype=torch.float64)
    distributed.all_reduce(found, distributed.ReduceOp.MAX)
    return float(found)
