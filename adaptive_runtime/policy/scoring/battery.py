"""The weight of accuracy against energy, by the charge of the battery."""

from dataclasses import dataclass
from itertools import pairwise

from adaptive_runtime.base.errors import AdaptiveError

STEPS = 100
"""Steps of mu from 0 to 1; each is one order of preference."""
POINTS = ((0.0, 0.2), (1.0, 1.0))


@dataclass(frozen=True, slots=True)
class BatteryMu:
    """mu in steps of 0.01, linear between points (charge, mu) and constant outside of them; both rise.

    Source: CrowdHMTware §III-D, where mu follows the remaining battery.
    """

    points: tuple[tuple[float, float], ...] = POINTS

    def __post_init__(self) -> None:
        charges = [charge for charge, _ in self.points]
        rises = all(a < b for a, b in pairwise(charges)) and all(a[1] <= b[1] for a, b in pairwise(self.points))
        if not (self.points and rises and all(0 <= value <= 1 for point in self.points for value in point)):
            got = ", ".join(f"{charge:.4g}: {mu:.4g}" for charge, mu in self.points) or "no points"
            allowed = "charges from 0 to 1 that rise, each with a mu from 0 to 1 that does not fall"
            raise AdaptiveError("mu by battery", got, allowed=allowed)

    def mu(self, battery: float | None, charging: bool | None, before: float | None = None) -> float:
        """mu for a charge; on mains, or without a battery, that of the last point.

        before: the present mu, which stays while the charge asks for a change of less than one and a half steps, to avoid
        flapping.
        """
        if charging or battery is None:
            return self.points[-1][1]
        mu = self._between(battery)
        if before is not None and abs(mu - before) < 1.5 / STEPS:
            return before
        return round(mu * STEPS) / STEPS

    def _between(self, battery: float) -> float:
        """mu for a charge, interpolated between the neighbouring points."""
        (charge, mu), *others = self.points
        if battery <= charge:
            return mu
        for next_charge, next_mu in others:
            if battery < next_charge:
                return mu + (next_mu - mu) / (next_charge - charge) * (battery - charge)
            charge, mu = next_charge, next_mu
        return mu
