"""Messages of the launcher on the memory plans of ranks."""

from pathlib import Path
from typing import Any

from tasks.base.artifacts import read_json
from tasks.base.progress import Progress
from tasks.training.memory.saved import SavingPlan


def plan_file(folder: Path, first_step: int) -> Path:
    """The file into which the first rank writes the plan of the phase that begins after `first_step` finished steps."""
    return folder / f"memory-{first_step}.json"


class PlanTeller:
    """Reports each new plan in a job's folder, in words and as metrics, and the measured peak."""

    def __init__(self, folder: Path, name: str, progress: Progress) -> None:
        self._folder, self._name, self._progress = folder, name, progress
        self._told: set[Path] = set()
        self._plan: SavingPlan | None = None
        for file in folder.glob("memory-*.json"):
            file.unlink()

    def look(self, done: int) -> None:
        """Report new plans. done: number of finished steps."""
        for file in sorted(set(self._folder.glob("memory-*.json")) - self._told):
            self._told.add(file)
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
