"""The phases of a training: each has a strategy, a number of epochs, and its own rise and fall of the learning rate."""

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.training.finetune.settings import FROZEN, Settings, Strategy

REFINING = 0.7
"""Factor of the learning rate when `tune` continues with weights that an earlier phase trained."""
GENTLE = 0.3
"""Factor of the learning rate for a network that was trained before."""


@dataclass(frozen=True, slots=True)
class TrainingPhase:
    """Steps with the same training: from `first_step` (exclusive) to `last_step`.

    strategy: None for a plain network. rate: the factor of the learning rate. part: the position of the trained exit.
    """

    strategy: Strategy | None
    first_step: int
    last_step: int
    rate: float = 1.0
    part: int | None = None

    @property
    def steps(self) -> int:
        """The number of steps."""
        return self.last_step - self.first_step


def phases_of(
    settings: Settings | None, epochs: int, steps_per_epoch: int, total_steps: int, exits: int = 0
) -> list[TrainingPhase]:
    """The phases of a training, in order; phases that `total_steps` does not reach are left out.

    exits: number of exits; `staged` has a phase for each.
    """
    if settings is None:
        return [TrainingPhase(None, 0, total_steps)]
    assert settings.strategies, f"the strategy is {settings.strategy}"
    found, first = [], 0
    shares = settings.phase_shares or (1.0,) * len(settings.strategies)
    rates = settings.phase_rates or default_rates(settings.strategies, gentle=bool(settings.gentle))
    for strategy, own, rate in zip(settings.strategies, split_epochs(epochs, shares), rates, strict=True):
        stages = split_epochs(own, settings.exits.shares or (1.0,) * exits) if strategy == "staged" else [own]
        for part, length in enumerate(stages):
            last = min(first + length * steps_per_epoch, total_steps)
            if last > first:
                found.append(TrainingPhase(strategy, first, last, rate, part if strategy == "staged" else None))
            first = last
    return found


def default_rates(strategies: Sequence[Strategy], *, gentle: bool = False) -> list[float]:
    """Factors of the learning rate: smaller if `tune` continues after an earlier phase.

    gentle: smaller, too, for phases that train the network's own weights.
    """
    own = [GENTLE if gentle and strategy not in FROZEN else 1.0 for strategy in strategies]
    return [
        REFINING if place and strategy == "tune" else rate
        for place, (strategy, rate) in enumerate(zip(strategies, own, strict=True))
    ]


def split_epochs(epochs: int, shares: Sequence[float]) -> list[int]:
    """Split epochs by shares, at least one for each: the split nearest to the shares, the earlier share first among equals."""
    assert epochs >= len(shares)
    found = [1] * len(shares)
    for _ in range(epochs - len(shares)):
        wanted = [share / sum(shares) * epochs for share in shares]
        missing = [want - have for want, have in zip(wanted, found, strict=True)]
        found[missing.index(max(missing))] += 1
    return found
