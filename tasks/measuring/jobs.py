"""Models as jobs for device agents, in batches, and latencies corrected to a calm device.

Names and shapes of inputs and outputs come from the ONNX model. The next batch is prepared while the device works on
the last.

A reference model runs beside every few measured models. Heat and other users of the device slow down the reference and
the measured models, but not equally: a large model whose weights come from memory is slowed by other users of the
memory, a small model in the cache is not. So a model shares a part of the reference's slowdown, in logarithms, and that
part depends on its latency; both numbers are fitted to measurements of the same models at other slowdowns of the
reference.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import onnx

from adaptive_runtime.base.numbers import clipped_share
from profiling_agents.client import ModelJob
from profiling_agents.messages import Capabilities, Format, Measurement, Shape
from profiling_agents.sensing.machine import running_system
from solvers.tables import Values
from tasks.evaluation.ncnn.files import NcnnFiles

T = TypeVar("T")
U = TypeVar("U")


def pieces(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """`size` items at a time, in order; the last piece may have fewer."""
    return (items[first : first + size] for first in range(0, len(items), size))


def ahead(items: Iterable[T], prepare: Callable[[T], U], device: Capabilities) -> Iterator[U]:
    """`map(prepare, items)`; the next item is prepared in a thread while the device works on the last.

    If the device is part of this machine, nothing is prepared ahead: it would share memory and caches with the measurements.
    """
    if device.running_system is not None and device.running_system == running_system():
        yield from map(prepare, items)
        return
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting: Future[U] | None = None
        for item in items:
            following = pool.submit(prepare, item)
            if waiting is not None:
                yield waiting.result()
            waiting = following
        if waiting is not None:
            yield waiting.result()


BEST_QUANTILE = 0.2
PRIOR = 8
"""Weight of the prior 'models slow down like the reference', in pseudo-measurements of average deviation."""


class TimedLine(Measurement):
    """A line of a file of latencies: a measurement, and the latency of the reference beside it, if that was measured."""

    reference_ms: float | None = None

    @property
    def measurement(self) -> Measurement:
        """The measurement alone."""
        return Measurement.model_validate(self.model_dump(exclude={"reference_ms"}))


@dataclass(frozen=True, slots=True)
class Calm:
    """best_ms: the reference's latency on an undisturbed device; NaN if it was never measured.

    A model that takes exp(x) times as long as the reference shares the part level + slope x of its slowdown, within [0, 1].
    """

    best_ms: float
    level: float = 1.0
    slope: float = 0.0

    @classmethod
    def fit(cls, lines: Iterable[TimedLine]) -> "Calm":
        """Fit to all measurements."""
        by_key: dict[str, list[TimedLine]] = {}
        references = []
        for line in lines:
            if line.reference_ms is not None:
                references.append(line.reference_ms)
                by_key.setdefault(line.key, []).append(line)
        if not references:
            return cls(math.nan)
        rows = [_deviations(found) for found in by_key.values()]
        slowed, scaled, took = np.concatenate([np.zeros((0, 3)), *rows]).T
        factors = np.column_stack([slowed, scaled])
        weight = PRIOR * float((slowed**2).mean()) if len(slowed) else 0.0
        level, slope = 1.0, 0.0
        if weight > 0:
            normal = factors.T @ factors + weight * np.eye(2)
            level, slope = np.linalg.solve(normal, factors.T @ took + weight * np.array([1.0, 0.0])).tolist()
        return cls(float(np.quantile(references, BEST_QUANTILE)), level, slope)

    def slowdowns(self, lines: Sequence[TimedLine]) -> Values:
        """The slowdown of each measurement (n,) of one model against a calm device; 1 if it is unknown."""
        ratios = [ratio for ratio in map(_ratio, lines) if ratio is not None]
        if not ratios or math.isnan(self.best_ms):
            return np.ones(len(lines))
        share = clipped_share(self.level + self.slope * float(np.mean(ratios)))
        references_ms = (line.reference_ms for line in lines)
        return np.array([1.0 if one is None else (one / self.best_ms) ** share for one in references_ms])


def _ratio(line: TimedLine) -> float | None:
    """Logarithm of a latency over the reference's."""
    return math.log(line.p50_ms / line.reference_ms) if line.p50_ms and line.reference_ms else None


def _deviations(lines: Sequence[TimedLine]) -> Values:
    """For the measurements of one model: the reference's slowdown from its mean, that times x, and the model's; (n, 3)."""
    known = [(line.p50_ms, line.reference_ms) for line in lines if _ratio(line) is not None]
    if len(known) < 2:
        return np.zeros((0, 3))
    took, reference = np.log(np.array(known, dtype=np.float64).T)
    slowed = reference - reference.mean()
    return np.column_stack([slowed, slowed * (took - reference).mean(), took - took.mean()])


def onnx_job(key: str, model: bytes, batch: int = 1) -> ModelJob:
    """A job for the ONNX model itself. batch: for a model that leaves it open."""
    return _job(key, "onnx", model, (model,), batch)


def ncnn_job(key: str, model: bytes, converted: NcnnFiles) -> ModelJob:
    """A job for NCNN files made from an ONNX model."""
    return _job(key, "ncnn", model, (converted.param, converted.bin))


def _job(key: str, model_format: Format, model: bytes, files: tuple[bytes, ...], batch: int = 1) -> ModelJob:
    graph = onnx.load_from_string(model).graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    ncnn = model_format == "ncnn"
    return ModelJob(
        key=key,
        format=model_format,
        files=files,
        input_names=tuple(f"in{i}" if ncnn else value.name for i, value in enumerate(inputs)),
        input_shapes=tuple(_shape(value, batch) for value in inputs),
        output_names=tuple(f"out{i}" if ncnn else value.name for i, value in enumerate(graph.output)),
        output_shapes=tuple(_shape(value, batch) for value in graph.output),
    )


def _shape(value: onnx.ValueInfoProto, batch: int) -> Shape:
    return tuple(dimension.dim_value or batch for dimension in value.type.tensor_type.shape.dim)
