"""How soon the detector notices drift, and how often it errs, for `benchmarks.drift`.

What it looks at, the statistics of each image, is computed once for each network and kept in a file; a drawing is an order of
these images, so that thousands of streams cost seconds.

Legend: M images, D statistics of an image.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_runtime.weights import DriftDetector, GuardSettings
from adaptive_runtime.weights.statistics import STATISTICS
from benchmarks.drift_streams import MeasuredNetwork
from tasks.data import DataSettings
from tasks.data.drawn.glyphs import Glyphs
from tasks.data.drift import CORRUPTIONS, LabelledImages, corrupt

BATCH = 64
BEFORE = 200
"""Clean images before the first drifted one."""
RATES = (1.0, 10.0)
"""Stated false alarms per 100,000 images; the first one is the default of the guard."""
SURE = 0.05
"""A stated rate counts as broken where as many alarms, or more, would come with a smaller probability."""
CLEAN, CALIBRATION = "clean", "calibration"
Scores = NDArray[np.float64]


class AlarmPlan(NamedTuple):
    """pool: fresh clean images; drifted: of each corruption; drawings: streams of each; clean_samples: for false alarms."""

    pool: int
    drifted: int
    drawings: int
    clean_samples: int
    severity: int


def fresh_images(settings: DataSettings, count: int, images: LabelledImages) -> LabelledImages:
    """Images that follow the data set's in the same drawing, in random order: nobody has seen them."""
    glyphs = Glyphs(settings.model_copy(update={"images": settings.images + count}))
    order = np.random.default_rng(0).permutation(np.arange(settings.images, settings.images + count))
    return images._replace(x_MCHW=glyphs.images(order, None), label_M=glyphs.labels[order])


def scores_of(network: MeasuredNetwork, fresh: LabelledImages, plan: AlarmPlan, folder: Path) -> dict[str, Scores]:
    """What the detector looks at (M, D): of calibration, of clean images, and of as many others under each corruption."""
    parts = len(STATISTICS), network.name, network.digest, plan.pool, plan.drifted, plan.severity
    file = folder / f"scores-{'-'.join(map(str, parts))}.npz"
    if file.exists():
        with np.load(file) as arrays:
            return dict(arrays)
    guard = network.guarded()

    def look(x_MCHW: torch.Tensor) -> Scores:
        return np.concatenate([guard.profile.look(fresh.normalised(x_BCHW))[1] for x_BCHW in x_MCHW.split(BATCH)])

    others = fresh.x_MCHW[: plan.drifted]
    found = {CALIBRATION: guard.profile.calibration_ND, CLEAN: look(fresh.x_MCHW[plan.drifted :])}
    for name in CORRUPTIONS:
        found[name] = look(corrupt(others, name, plan.severity, seed=0, places=range(len(others))))
    np.savez(file, allow_pickle=False, **found)
    return found


def delay_rows(network: str, scores: dict[str, Scores], plan: AlarmPlan) -> Iterator[dict[str, Any]]:
    """A row for each corruption: images from the first drifted one to the alarm, over drawings of orders.

    noticed: share of drawings with an alarm within all drifted images. early: drawings with one before, which are left out.
    """
    for number, name in enumerate(CORRUPTIONS):
        delays: list[float] = []
        early = 0
        for drawing in range(plan.drawings):
            rng = np.random.default_rng((drawing, number))
            before_MD = rng.permutation(scores[CLEAN])[:BEFORE]
            first = _first_alarm(
                scores[CALIBRATION], np.concatenate([before_MD, rng.permutation(scores[name])]), drawing
            )
            early += first < BEFORE
            if first >= BEFORE:
                delays.append(first - BEFORE + 1)
        row: dict[str, Any] = {"network": network, "corruption": name, "drawings": plan.drawings, "early": early}
        for title, share in (("median", 0.5), ("p95", 0.95)):
            at = float(np.quantile(delays, share, method="higher")) if delays else math.inf
            row[f"{title}_images"] = at if math.isfinite(at) else None
        yield row | {"noticed": float(np.isfinite(delays).mean()) if delays else 0.0}


def _first_alarm(calibration_ND: Scores, scores_MD: Scores, seed: int) -> float:
    """The place of the image at which the detector alarms first; infinite: at none."""
    detector = DriftDetector(calibration_ND, GuardSettings().false_alarms, seed)
    return next((float(place) for place, score_D in enumerate(scores_MD) if detector.update(score_D)), math.inf)


def false_alarm_rows(network: str, scores: dict[str, Scores], plan: AlarmPlan) -> Iterator[dict[str, Any]]:
    """Alarms among clean images in random orders, by calibration that is drawn with them, and by the network's own.

    The stated rate is over calibrations, so it has to hold for those that are drawn.
    """
    for rate in RATES:
        yield _false_alarms(
            network, "drawn anew", scores[CLEAN], None, rate, plan.clean_samples, len(scores[CALIBRATION])
        )
    yield _false_alarms(network, "its own", scores[CLEAN], scores[CALIBRATION], RATES[0], plan.clean_samples, 0)


def _false_alarms(
    network: str, title: str, clean_MD: Scores, calibration_ND: Scores | None, rate: float, samples: int, drawn: int
) -> dict[str, Any]:
    seen = alarms = drawing = 0
    while seen < samples:
        order_MD = np.random.default_rng((drawing, 1)).permutation(clean_MD)
        detector = DriftDetector(order_MD[:drawn] if calibration_ND is None else calibration_ND, rate, drawing)
        stream_MD = order_MD[drawn:][: samples - seen]
        alarms += sum(detector.update(score_D) for score_D in stream_MD)
        seen, drawing = seen + len(stream_MD), drawing + 1
    return {
        "network": network,
        "calibration": title,
        "stated_per_100000": rate,
        "clean_images": seen,
        "false_alarms": alarms,
        "per_100000": alarms * 1e5 / seen,
        "kept": as_many_or_more(alarms, rate * seen / 1e5) >= SURE,
    }


def as_many_or_more(count: int, mean: float) -> float:
    """Probability that a Poisson variable with this mean is at least `count`."""
    return 1 - sum(math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(count))
