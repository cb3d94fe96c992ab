"""Latency-range accuracy: mean accuracies of SubNets while they were trained, by ranges of MACs and of predicted latency."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from tailor_ir import SuperNet
from tasks.base.artifacts import read_lines
from tasks.base.pages.text import milliseconds
from tasks.base.schemas.results import RANGE_ACCURACIES_FILE, RANGES_FILE, WatchedSubNets
from tasks.prediction.latency import LatencyPredictor
from tasks.prediction.validate import LATENCY_FILE
from tasks.report.sources import Sources

RANGES = 4


class ReportedRange(TypedDict):
    """The SubNets of one range; `accuracies`: their mean accuracy [0, 1] after each of the steps."""

    label: str
    subnets: int
    accuracies: list[float]


class ReportedRanges(TypedDict):
    """Mean accuracies on `images` validation images after some `steps`. `by_latency`: of the same SubNets, by device."""

    steps: list[int]
    images: int
    by_macs: list[ReportedRange]
    by_latency: dict[str, list[ReportedRange]]


def range_accuracies(sources: Sources, net: SuperNet) -> ReportedRanges | None:
    """Range accuracies of the fine-tuning; None if SubNets were not evaluated."""
    folder = sources.finetune
    lines = read_lines(folder / RANGE_ACCURACIES_FILE) if folder is not None else []
    if folder is None or not lines:
        return None
    watched = WatchedSubNets.read(folder / RANGES_FILE)
    shares = np.array([line["correct"] for line in lines]) / lines[0]["total"]
    codes = net.space.encode([dict(one.config) for one in watched.subnets])
    latencies = {
        device.name: LatencyPredictor.load(device.latency / LATENCY_FILE).predict(codes) for device in sources.devices
    }
    return {
        "steps": [line["step"] for line in lines],
        "images": lines[0]["total"],
        "by_macs": _grouped(_by_macs(watched), shares),
        "by_latency": {name: _grouped(_by_latency(found_ms), shares) for name, found_ms in latencies.items()},
    }


def _by_macs(watched: WatchedSubNets) -> dict[str, list[int]]:
    """Positions of SubNets by range, named by its bounds."""
    million = [bound / 1e6 for bound in watched.bounds_macs]
    found: dict[str, list[int]] = {}
    for position, one in enumerate(watched.subnets):
        label = f"{million[one.range]:.3g} to {million[one.range + 1]:.3g} M MACs"
        found.setdefault(label, []).append(position)
    return found


def _by_latency(latencies_ms: NDArray[np.float64]) -> dict[str, list[int]]:
    """Positions of SubNets by equal ranges of predicted latency [ms], without empty ranges."""
    bounds_ms = np.linspace(latencies_ms.min(), latencies_ms.max(), RANGES + 1)
    numbers = np.searchsorted(bounds_ms[1:-1], latencies_ms, side="right")
    return {
        f"{milliseconds(bounds_ms[number])} to {milliseconds(bounds_ms[number + 1])}": np.flatnonzero(
            numbers == number
        ).tolist()
        for number in range(RANGES)
        if (numbers == number).any()
    }


def _grouped(positions: Mapping[str, Sequence[int]], shares: NDArray[np.float64]) -> list[ReportedRange]:
    return [
        {"label": label, "subnets": len(own), "accuracies": shares[:, own].mean(1).tolist()}
        for label, own in positions.items()
    ]
