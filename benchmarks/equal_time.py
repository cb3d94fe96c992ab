"""Trainings of whole epochs that take equal time."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

MISSED = 0.02
"""Share of the time that epochs may take more or less."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a space is trained: phases, their whole epochs, and the time that these take by the trials [s]."""

    strategies: tuple[str, ...]
    epochs: tuple[int, ...]
    seconds: float

    @property
    def overrides(self) -> list[str]:
        """For the command line."""
        words = [f"finetune.strategy=[{','.join(self.strategies)}]", f"finetune.epochs={sum(self.epochs)}"]
        if len(self.strategies) > 1:
            words.append(f"finetune.phase_shares=[{','.join(map(str, self.epochs))}]")
        return words


def whole_epochs(seconds: float, shares: Sequence[float], epoch_s: Sequence[float]) -> tuple[int, ...]:
    """Epochs of each phase, one at least, that together take `seconds`.

    epoch_s: seconds of an epoch of each. Of all that take it within `MISSED`, those nearest to the shares.
    """
    wanted = [share / sum(shares) * seconds / one_s for share, one_s in zip(shares, epoch_s, strict=True)]
    near = [sorted({max(1, int(number) + more) for more in (-1, 0, 1, 2)}) for number in wanted]

    def away(epochs: Sequence[int]) -> tuple[float, float]:
        total_s = sum(number * one_s for number, one_s in zip(epochs, epoch_s, strict=True))
        missed = abs(total_s - seconds) / seconds
        return max(MISSED, missed), sum(abs(number - want) for number, want in zip(epochs, wanted, strict=True))

    return min(product(*near), key=away)
