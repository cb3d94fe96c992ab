"""The times of OpenVINO's layers, from the counters of a profiled model.

A counter holds the mean of a layer over all runs up to now, in whole µs, and each run adds whole µs to its sum; both are
rounded down. A layer's time in one run is the difference between its sums after and before the run. After n runs it is
known to ± n µs; over many runs these errors cancel. Runs in which the layer was interrupted stand out and are left out.
"""

from collections.abc import Callable, Sequence

import numpy as np
import openvino
from numpy.typing import NDArray

from profiling_agents.backends.base import LEAST_RUNS
from profiling_agents.backends.own_names import OWN
from profiling_agents.messages import LayerTiming
from profiling_agents.sensing.pace import Runs

ORIGINAL_NAMES = "originalLayersNames"
LOST_US = 0.5  # on average, by rounding down
UNINTERRUPTED = 1.25  # times the layer's median
NOTHING_RUNS = ("undef", "unknown", "reorder")
"""Prefixes of the implementations of layers that are fused into others or leave their tensor in place."""


def time_layers(
    model: openvino.CompiledModel,
    request: openvino.InferRequest,
    run: Callable[[], object],
    inputs: Sequence[str],
    runs: Runs,
) -> list[LayerTiming]:
    """The layers that ran, in the order of execution. run: runs the request. inputs: names of the model's inputs."""
    run()
    counters_us = [_counters_us(request)]
    for _ in runs.each(LEAST_RUNS):
        run()
        counters_us.append(_counters_us(request))
    rows_us, errors_us = times_of_runs_us(np.array(counters_us))
    kept_rows_us, kept_errors_us = zip(*runs.kept(list(zip(rows_us, errors_us, strict=True))), strict=True)
    times_ms = mean_times_us(np.array(kept_rows_us), np.array(kept_errors_us)) * 1e-3
    names = _Names(model, inputs)
    return [
        LayerTiming(name=names.of(info.node_name), kind=info.node_type, time_ms=float(time_ms))
        for info, time_ms in zip(request.get_profiling_info(), times_ms, strict=True)
        if info.real_time or not info.exec_type.startswith(NOTHING_RUNS)
    ]


def _counters_us(request: openvino.InferRequest) -> list[int]:
    """The counter of each layer [µs]."""
    return [round(info.real_time.total_seconds() * 1e6) for info in request.get_profiling_info()]


def times_of_runs_us(counters_us: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times of each layer in each run after the first, and their largest errors, both (runs, layers) [µs].

    counters_us: counters after each run (runs + 1, layers).
    """
    runs = np.arange(1, len(counters_us) + 1)[:, np.newaxis]
    sums_us = np.where(counters_us > 0, counters_us * runs + LOST_US * (runs - 1), 0.0)
    rows_us = np.diff(sums_us, axis=0)
    return rows_us, np.broadcast_to(runs[1:], rows_us.shape).astype(np.float64)


def mean_times_us(rows_us: NDArray[np.float64], errors_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean times (layers,) over the runs in which the layer was not interrupted [µs]."""
    usual_us = np.median(rows_us, axis=0).clip(min=0.0)
    counted = rows_us <= UNINTERRUPTED * usual_us + errors_us
    means_us = np.sum(rows_us, axis=0, where=counted) / counted.sum(axis=0).clip(min=1)
    means_with_fractions_us: NDArray[np.float64] = means_us.clip(min=0.0) + LOST_US
    return means_with_fractions_us


class _Names:
    """Names of layers, each starting with the name of a node of the file.

    OpenVINO splits a node of the file into several and names the last of them after it; the names of the others mean nothing.
    Nodes that it inserts behind an input are named after the input. Both belong to the next node that has a name.
    """

    def __init__(self, model: openvino.CompiledModel, inputs: Sequence[str]) -> None:
        self._inputs = frozenset(inputs)
        self._nodes = {node.get_friendly_name(): node for node in model.get_runtime_model().get_ordered_ops()}

    def of(self, layer: str) -> str:
        """The layer's name, prefixed with the name of its node unless it already starts with it."""
        waiting, seen = [layer], {layer}
        while waiting:
            name = waiting.pop(0)
            if (own := self._own(name)) is not None:
                return layer if name == layer and own == layer else f"{own}/{layer}"
            behind = [reader for reader in self._readers(name) if reader not in seen]
            waiting += behind
            seen.update(behind)
        return layer

    def _own(self, name: str) -> str | None:
        """The first of a layer's names that starts with the name of a node of the file."""
        node = self._nodes.get(name)
        originals = [] if node is None else str(node.get_rt_info()[ORIGINAL_NAMES].value).split(",")
        known = ((one, OWN.match(one)) for one in (name, *originals))
        return next((one for one, match in known if match is not None and match[0] not in self._inputs), None)

    def _readers(self, name: str) -> list[str]:
        node = self._nodes.get(name)
        if node is None:
            return []
        targets = (target for output in node.outputs() for target in output.get_target_inputs())
        return [target.get_node().get_friendly_name() for target in targets]
