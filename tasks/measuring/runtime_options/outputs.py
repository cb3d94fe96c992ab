"""Whether a model gives the same outputs under another engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from profiling_agents.client import AgentClient, ModelJob, RunError
from profiling_agents.messages import DEFAULT_ENGINE, Engine

Outputs = list[list[np.ndarray]]


class CheckedModel(NamedTuple):
    """A whole SubNet with its weights. inputs: draws a batch of each of its inputs."""

    job: ModelJob
    inputs: Callable[[np.random.Generator], Sequence[np.ndarray]]


@dataclass(slots=True)
class OutputCheck:
    """Runs models with their weights on random inputs; the caller holds the lease.

    tolerance: largest difference over the largest output.
    """

    client: AgentClient
    models: Sequence[CheckedModel]
    tolerance: float
    seed: int
    _expected: Outputs = field(default_factory=list)

    def difference(self, engine: Engine) -> str | None:
        """The reason why the outputs differ from those of the runtime's defaults; None if they do not."""
        try:
            if not self._expected:
                self._expected = self._run(DEFAULT_ENGINE)
            found = self._run(engine)
        except RunError as error:
            return f"no outputs: {error}"
        largest = max(map(_difference, found, self._expected), default=0.0)
        if largest <= self.tolerance:
            return None
        return f"outputs differ from those of the defaults by {largest:.3g}; allowed: {self.tolerance:g}"

    def _run(self, engine: Engine) -> Outputs:
        rng = np.random.default_rng(self.seed)
        return [self.client.run(replace(job, engine=engine), draw(rng)) for job, draw in self.models]


def _difference(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest difference over the largest expected value; infinite if a value is not finite."""
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        difference = float(np.abs(one - other).max() / max(float(np.abs(other).max()), np.finfo(np.float32).tiny))
        worst = max(worst, difference if np.isfinite(difference) else np.inf)
    return worst
