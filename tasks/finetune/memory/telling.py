"""What the launcher tells of the plans that ranks have made."""

from pathlib import Path
from typing import Any

from tasks.artifacts import read_json
from tasks.progress import Progress
from tasks.training_memory.saved import SavingPlan


def plan_file(folder: Path, first_step: int) -> Path:
    """Where the first rank leaves the plan of the phase that begins after `first_step` finished steps."""
    return folder / f"memory-{first_step}.json"


class PlanTeller:
    """Tells each new plan of a job's folder, in words and as metrics, and the peak that was measured."""

    def __init__(self, folder: Path, name: str, progress: Progress) -> None:
        self._folder, self._name, self._progress = folder, name, progress
        self._told: set[Path] = set()
        self._plan: SavingPlan | None = None
        for file in folder.glob("memory-*.json"):
            file.unlink()

    def look(self, done: int) -> None:
        """Tell of plans that are new. done: steps that are finished."""
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
        """Tell the peak beside the prediction, in the line of the step that was counted."""
        if "step_peak_mib" in line and self._plan is not None:
            self._progress.say(
                f"{self._name}: step {line['step']} took {line['step_peak_mib']:.1f} MiB; "
                f"{self._plan.peak_mib:.1f} MiB were predicted"
            )
