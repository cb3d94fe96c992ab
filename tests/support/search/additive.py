"""A small space with skippable blocks and predictors that are sums, whose optimum brute force can find."""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass
class BlockSpace:
    """Resolution, then per stage a depth (3 choices) and two blocks' ratios; depth skips from the end.

    In every second block the middle ratio is the same SubNet as the largest, as after rounding channels.
    """

    stages: int
    resolutions: int = 4
    ratios: int = 3

    @property
    def cardinalities(self) -> NDArray[np.int64]:
        return np.array([self.resolutions, *([3, self.ratios, self.ratios] * self.stages)])

    def canonical_codes(self, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        codes = codes.copy()
        for stage in range(self.stages):
            depth = codes[:, 1 + 3 * stage]
            second = codes[:, 3 + 3 * stage]
            second[(depth < 2) | (second == self.ratios - 2)] = self.ratios - 1
            codes[depth < 1, 2 + 3 * stage] = self.ratios - 1
        return codes

    def random_codes(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return self.canonical_codes(rng.integers(0, self.cardinalities, size=(n, len(self.cardinalities))))

    def all_codes(self) -> NDArray[np.int64]:
        codes = np.array(list(itertools.product(*(range(k) for k in self.cardinalities))))
        return np.unique(self.canonical_codes(codes), axis=0)


@dataclass
class Latency:
    """base + resolution factor × sum over the blocks that are not skipped, by their ratio."""

    space: BlockSpace
    base: float
    factors: NDArray[np.float64]
    values: list[NDArray[np.float64]]
    rows: int = 0

    def predict(self, codes: NDArray[np.int64]) -> NDArray[np.float64]:
        self.rows += len(codes)
        total = np.zeros(len(codes))
        for stage in range(self.space.stages):
            depth = codes[:, 1 + 3 * stage]
            for block in (1, 2):
                column = 1 + 3 * stage + block
                total += (depth >= block) * self.values[column][codes[:, column]]
        return self.base + self.factors[codes[:, 0]] * total


@dataclass
class Accuracy:
    """base + one value per variable and choice; the largest choice's is 0."""

    base: float
    values: list[NDArray[np.float64]]

    def predict(self, codes: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.base + sum(
            (value[codes[:, column]] for column, value in enumerate(self.values)), np.zeros(len(codes))
        )

    score = predict


def random_models(space: BlockSpace, rng: np.random.Generator) -> tuple[Latency, Accuracy]:
    """A latency and an accuracy that mostly, not always, grow with each choice."""
    latency = [rng.uniform(0.2, 1.0) + np.cumsum(rng.uniform(-0.1, 1.0, k)) for k in space.cardinalities]
    accuracy = [np.cumsum(rng.uniform(-0.002, 0.02, k)) for k in space.cardinalities]
    factors = np.linspace(0.4, 1.0, space.resolutions)
    return Latency(space, 1.0, factors, latency), Accuracy(0.6, [a - a[-1] for a in accuracy])
