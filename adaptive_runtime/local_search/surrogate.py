"""Accuracy of SubNets as a sum of losses of their segments: a linear model with a prior, by the answers that were counted.

Legend: E segments, n SubNets.
"""

from collections.abc import Mapping

import numpy as np

from adaptive_runtime.local_search.space import Floats, Path

UNKNOWN_LOSS, UNKNOWN_DEVIATION = 0.02, 0.05
LEAST_DEVIATION, DEVIATION_SHARE = 0.02, 0.5
"""Standard deviations of losses on the user's images around those that were shipped."""
BEYOND_SUM = 0.01
"""Standard deviation of what choices do together beyond the sum of their losses, until it is known better."""
FEWEST = 4


class AdditiveModel:
    """Losses of segments, normally distributed: as shipped with the bundle, then as the evaluated SubNets say.

    losses_E: shares of images that the largest SubNet loses with one segment; nan: unknown. own_E: the network's own layers,
    which lose nothing. largest: the accuracy of the largest SubNet. images: on which accuracies are measured.
    """

    def __init__(self, losses_E: Floats, own_E: np.ndarray, largest: float, images: int) -> None:
        self._largest, self._images = largest, images
        known = losses_E[~own_E & ~np.isnan(losses_E)]
        fallback = float(known.mean()) if len(known) else UNKNOWN_LOSS
        self._prior_E = np.where(own_E, 0.0, np.where(np.isnan(losses_E), fallback, losses_E))
        shipped_E = np.maximum(LEAST_DEVIATION, DEVIATION_SHARE * np.abs(self._prior_E))
        deviation_E = np.where(np.isnan(losses_E), UNKNOWN_DEVIATION, shipped_E)
        self._free = np.flatnonzero(~own_E)
        self._precision = np.diag(1.0 / deviation_E[self._free] ** 2)
        self.mean_E, self._spread = self._prior_E, np.linalg.cholesky(np.linalg.inv(self._precision))
        self.residual_variance = BEYOND_SUM**2

    def fit(self, accuracies: Mapping[Path, float]) -> None:
        """Update by measured accuracies of SubNets; the prior is the bundle's each time, so that order does not matter."""
        paths = sorted(accuracies)
        features = self._features(paths)
        measured = np.array([accuracies[path] for path in paths])
        lost = self._largest - measured - features @ self._prior_E[self._free]
        noise = self.counting_variance(measured) + BEYOND_SUM**2
        precision = self._precision + (features / noise[:, None]).T @ features
        found = np.linalg.solve(precision, (features / noise[:, None]).T @ lost)
        self.mean_E = self._prior_E.copy()
        self.mean_E[self._free] += found
        self._spread = np.linalg.cholesky(np.linalg.inv(precision))
        left = lost - features @ found
        if len(paths) >= FEWEST:
            beyond = float(np.mean(left**2 - self.counting_variance(measured)))
            self.residual_variance = max(beyond, (BEYOND_SUM / 4) ** 2)

    def draw(self, rng: np.random.Generator) -> Floats:
        """Losses of segments (E,) as they may be, by what is known."""
        found = self.mean_E.copy()
        found[self._free] += self._spread @ rng.standard_normal(len(self._free))
        return found

    def predicted(self, path: Path) -> float:
        """The accuracy of a SubNet by the sum of mean losses."""
        return self._largest - float(self.mean_E[list(path)].sum())

    def combined(self, path: Path, measured: float) -> float:
        """The accuracy of a SubNet by measurement and model, each by its variance.

        The best of many measurements on few images is too high by chance; the model knows of that.
        """
        of_count = float(self.counting_variance(np.array([measured]))[0])
        share = self.residual_variance / (self.residual_variance + of_count)
        return share * measured + (1 - share) * self.predicted(path)

    def counting_variance(self, accuracies: Floats) -> Floats:
        """The variance of shares of so many images; a share of 0 or 1 counts as one image from there."""
        within = np.clip(accuracies, 1 / (self._images + 2), 1 - 1 / (self._images + 2))
        found: Floats = within * (1 - within) / self._images
        return found

    def _features(self, paths: list[Path]) -> Floats:
        found = np.zeros((len(paths), len(self._prior_E)))
        for row, path in enumerate(paths):
            found[row, list(path)] = 1.0
        return found[:, self._free]
