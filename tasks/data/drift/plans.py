"""Plans of streams: the order of images, and the corruption of each. Legend: N images of the stream, K classes."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.data.drift.corruptions import CLEAN, SEVERITIES
from tasks.data.drift.settings import DriftSettings, StreamKind

Indices = NDArray[np.int64]


class StreamPlan(NamedTuple):
    """The columns of a plan, (N,) each. image: index of the image. corruption: index into `DriftSettings.corruptions`.
    severity: 0: clean.
    """

    image: Indices
    corruption: Indices
    severity: Indices


Planner = Callable[[DriftSettings, NDArray[np.int64], np.random.Generator], StreamPlan]


def plan_stream(settings: DriftSettings, labels: NDArray[np.int64]) -> StreamPlan:
    """The plan of a stream over images with these labels (M,); depends only on settings and labels."""
    return PLANNERS[settings.stream](settings, labels, np.random.default_rng(settings.seed))


def drawn(count: int, available: int, rng: np.random.Generator) -> Indices:
    """Image indices (count,) in random order; numbers of occurrences differ by at most one."""
    rounds = [rng.permutation(available) for _ in range(-(-count // available))]
    return np.concatenate(rounds)[:count]


def _joined(parts: list[StreamPlan]) -> StreamPlan:
    return StreamPlan(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _phase(image: Indices, corruption: int, severity: int) -> StreamPlan:
    return StreamPlan(image, np.full(len(image), corruption), np.full(len(image), severity))


def _clean(settings: DriftSettings, labels: Indices, rng: np.random.Generator) -> StreamPlan:
    return _phase(drawn(settings.images * settings.phases, len(labels), rng), 0, CLEAN)


def _continual(settings: DriftSettings, labels: Indices, rng: np.random.Generator) -> StreamPlan:
    return _joined(
        [
            _phase(drawn(settings.images, len(labels), rng), number, settings.severity)
            for number in range(len(settings.corruptions))
        ]
    )


def _mixed(settings: DriftSettings, labels: Indices, rng: np.random.Generator) -> StreamPlan:
    plan = _continual(settings, labels, rng)
    order = rng.permutation(len(plan.image))
    return StreamPlan(*(column[order] for column in plan))


def _gradual(settings: DriftSettings, labels: Indices, rng: np.random.Generator) -> StreamPlan:
    """Severities 1 … s … 1, each for equally many images, within the images of a corruption."""
    plan = _continual(settings, labels, rng)
    assert settings.severity <= SEVERITIES
    steps = [*range(1, settings.severity + 1), *range(settings.severity - 1, 0, -1)]
    severity = np.array(steps)[np.arange(settings.images) * len(steps) // settings.images]
    return plan._replace(severity=np.tile(severity, len(settings.corruptions)))


def _correlated(settings: DriftSettings, labels: Indices, rng: np.random.Generator) -> StreamPlan:
    parts = []
    for number in range(len(settings.corruptions)):
        image = drawn(settings.images, len(labels), rng)
        order = correlated_order(labels[image], settings.concentration, rng)
        parts.append(_phase(image[order], number, settings.severity))
    return _joined(parts)


def correlated_order(labels: Indices, concentration: float, rng: np.random.Generator) -> Indices:
    """An order (N,) in which classes come in runs.

    There are K slots. Dirichlet shares decide which part of each class is in each slot; within a slot the classes follow one
    another in random order. Source: RoTTA (Yuan et al., CVPR 2023), §4, after NOTE (Gong et al., NeurIPS 2022).
    """
    classes = np.unique(labels)
    slots: list[list[Indices]] = [[] for _ in classes]
    for name in classes:
        own = rng.permutation(np.flatnonzero(labels == name))
        shares = rng.dirichlet(np.full(len(slots), concentration))
        ends = np.round(np.cumsum(shares)[:-1] * len(own)).astype(np.int64)
        for slot, part in zip(slots, np.split(own, ends), strict=True):
            slot.append(part)
    return np.concatenate([slot[place] for slot in slots for place in rng.permutation(len(slot))])


def _returning(settings: DriftSettings, labels: Indices, rng: np.random.Generator) -> StreamPlan:
    parts = []
    for number in range(len(settings.corruptions)):
        for severity in (settings.severity, CLEAN):
            parts.append(_phase(drawn(settings.images, len(labels), rng), number, severity))
    return _joined(parts)


def _shares(settings: DriftSettings, labels: Indices, rng: np.random.Generator) -> StreamPlan:
    """Draw images of each phase with replacement, by the phase's own class shares."""
    by_class = [np.flatnonzero(labels == name) for name in np.unique(labels)]
    parts = []
    for _ in range(settings.phases):
        shares = rng.dirichlet(np.full(len(by_class), settings.concentration))
        chosen = rng.choice(len(by_class), size=settings.images, p=shares)
        image = np.array([rng.choice(by_class[name]) for name in chosen], dtype=np.int64)
        parts.append(_phase(image, 0, CLEAN))
    return _joined(parts)


PLANNERS: dict[StreamKind, Planner] = {
    "clean": _clean,
    "continual": _continual,
    "mixed": _mixed,
    "gradual": _gradual,
    "correlated": _correlated,
    "returning": _returning,
    "shares": _shares,
}
