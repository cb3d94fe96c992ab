"""Drift detection before anything changes: a sequential test with bounded false alarms.

Legend: N images of calibration, D statistics of an image, G bets.
"""

from bisect import bisect_left, bisect_right, insort

import numpy as np
from numpy.typing import NDArray

POWERS = (0.2, 0.5, 0.8)
"""ε of the bets ε · p^(ε−1), each on small and on large p-values; the integral of each over [0, 1] is 1."""
RUN_IMAGES = 20_000
"""Images after which the test restarts without an alarm, so that memory is bounded."""
SMALLEST = 1e-12
"""Smaller p-values are raised to this one: bets stay finite, and no bet pays more than without the limit."""


class DriftDetector:
    """Detects, image by image, whether images stop being exchangeable with those of calibration.

    Each statistic of a new image gets a conformal p-value among those of calibration and of all images of the run so far: p =
    (#larger + u · (#equal + 1)) / (n + 1), u uniform. While calibration and images of the run are exchangeable, a statistic's
    p-values are independent and uniform, whatever the distribution (Vovk, Gammerman and Shafer, 2005, theorem 8.2). Bets f with
    ∫f = 1 then make a Shiryaev–Roberts process of each statistic and bet, R ← (1 + R) · f(p), with E[R after t images] = t: R −
    t is a martingale. The same holds for the mean R̄ over statistics and bets. The alarm is R̄ ≥ c.

    While nothing drifts, for any network and any distribution of images, P(first alarm within n images) ≤ n/c for every n. By
    optional stopping, in one run c · P(alarm within n) ≤ E[R̄ at the stop] = E[images until the stop] ≤ n. Until the first
    alarm runs begin at fixed images, so their probabilities add up. The probability is over calibration images, too. With c =
    100,000 / rate this is `rate` alarms per 100,000 images. A run that follows a false alarm begins at a time that depends on
    calibration; for later alarms the bound is not proven.

    Source: Vovk et al., COPA 2021; Shin, Ramdas and Rinaldo, New England Journal of Statistics in Data Science 2024
    (e-detectors).

    A run ends with an alarm, or after 20,000 images.
    """

    def __init__(self, calibration_ND: NDArray[np.float64], false_alarms: float, seed: int) -> None:
        """false_alarms: per 100,000 images."""
        self.threshold = 1e5 / false_alarms
        self._calibration = [sorted(column) for column in calibration_ND.T.tolist()]
        self._rng = np.random.default_rng(seed)
        self.restart()

    def restart(self) -> None:
        """Begin a run with the calibration images only."""
        self._known = [list(column) for column in self._calibration]
        self._evidence_DG = np.zeros((len(self._known), 2 * len(POWERS)))
        self.images = 0

    @property
    def evidence(self) -> float:
        """R̄; an alarm is raised at `threshold`."""
        return float(self._evidence_DG.mean())

    def update(self, score_D: NDArray[np.float64]) -> bool:
        """Whether one more image raises an alarm; if so, the next image begins a run."""
        p_D = np.array([self._p_value(known, float(value)) for known, value in zip(self._known, score_D, strict=True)])
        self._evidence_DG = (1 + self._evidence_DG) * bets(p_D)
        self.images += 1
        alarm = self.evidence >= self.threshold
        if alarm or self.images >= RUN_IMAGES:
            self.restart()
        return alarm

    def _p_value(self, known: list[float], value: float) -> float:
        """The p-value of a value, which is added to the known ones."""
        below, not_above = bisect_left(known, value), bisect_right(known, value)
        larger, equal = len(known) - not_above, not_above - below
        insort(known, value)
        return (larger + float(self._rng.random()) * (equal + 1)) / len(known)


def bets(p_D: NDArray[np.float64]) -> NDArray[np.float64]:
    """(D, G) factors of each p-value."""
    sides_D2 = np.clip(np.stack([p_D, 1 - p_D], 1), SMALLEST, 1)
    powers = np.array(POWERS)
    return (powers * sides_D2[:, :, None] ** (powers - 1)).reshape(len(p_D), -1)
