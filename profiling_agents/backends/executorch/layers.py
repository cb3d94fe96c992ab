"""The times of ExecuTorch's layers, from the events of a traced program (ETDump, a flatbuffer; schema "ED00").

XNNPACK rounds a layer's time down to whole µs. The time of the call that ran the layers is exact: the time that the layers
lack is divided among them, up to 1 µs each.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from flatbuffers import number_types
from flatbuffers.table import Table

from profiling_agents.backends.base import ModelError
from profiling_agents.messages import LayerTiming

SIZE_PREFIX = 4
RUNS_OF_DUMP, NAME_OF_RUN, EVENTS_OF_RUN, PROFILE_OF_EVENT = 1, 0, 3, 0
"""Positions of fields in their tables."""
NAME, NAME_OF_LAYER, START, END = 0, 4, 6, 7
EXECUTION = "Execute"
CALL, AROUND_LAYERS = "DELEGATE_CALL", frozenset({"OPERATOR_CALL", "Method::execute"})
OWN_OPERATOR = "native_call_"
"""Prefix of the name of an operator that XNNPACK lacks and ExecuTorch runs itself."""
UNINTERRUPTED = 1.25  # times the layer's median
ROUNDED_NS = 1000.0


@dataclass(frozen=True, slots=True)
class TracedEvent:
    """One traced event and its duration [ns]."""

    name: str
    time_ns: float


def time_layers(dumps: Sequence[bytes]) -> list[LayerTiming]:
    """Mean times of the layers in order, each over the runs in which it was not interrupted. dumps: one per run."""
    runs = [_layers(_events(dump)) for dump in dumps]
    if len({tuple(event.name for event in run) for run in runs}) != 1:
        raise ModelError("ExecuTorch's runs differ in their layers")
    rows_ns = np.array([[event.time_ns for event in run] for run in runs], np.float64)
    counted = rows_ns <= UNINTERRUPTED * np.median(rows_ns, axis=0) + ROUNDED_NS
    times_ns = np.sum(rows_ns, axis=0, where=counted) / counted.sum(axis=0)
    return [
        LayerTiming(name=event.name, kind=event.name.partition(" (")[0], time_ms=float(time_ns) * 1e-6)
        for event, time_ns in zip(runs[0], times_ns, strict=True)
    ]


def _layers(events: Iterable[TracedEvent]) -> list[TracedEvent]:
    """The events of layers; XNNPACK's events come before the call that ran them."""
    layers: list[TracedEvent] = []
    inner: list[TracedEvent] = []
    for event in events:
        if event.name == CALL and inner:
            lost_ns = (event.time_ns - sum(one.time_ns for one in inner)) / len(inner)
            added_ns = min(max(lost_ns, 0.0), ROUNDED_NS)
            layers += [TracedEvent(one.name, one.time_ns + added_ns) for one in inner]
            inner = []
        elif event.name.startswith(OWN_OPERATOR):
            layers.append(event)
        elif event.name not in AROUND_LAYERS | {CALL}:
            inner.append(event)
    return layers


def _events(dump: bytes) -> list[TracedEvent]:
    """The events of execution in order; ModelError when the file is not of the schema."""
    try:
        return list(_executed(dump))
    except Exception as error:  # the model is foreign: any number in its trace may be wrong
        raise ModelError(f"ExecuTorch's trace cannot be read: {error}") from error


def _executed(dump: bytes) -> Iterator[TracedEvent]:
    root = Table(dump, SIZE_PREFIX)
    root.Pos = root.Indirect(root.Pos)
    for run in _tables(root, RUNS_OF_DUMP):
        if _text(run, NAME_OF_RUN) != EXECUTION:
            continue
        for event in _tables(run, EVENTS_OF_RUN):
            for profile in _table(event, PROFILE_OF_EVENT):
                yield TracedEvent(
                    _text(profile, NAME) or _text(profile, NAME_OF_LAYER),
                    _number(profile, END) - _number(profile, START),
                )


def _at(table: Table, field: int) -> int:
    """The offset of a field in its table; 0 if the table lacks it."""
    return int(table.Offset(4 + 2 * field))


def _tables(table: Table, field: int) -> Iterator[Table]:
    if offset := _at(table, field):
        start = table.Vector(offset)
        for index in range(table.VectorLen(offset)):
            yield Table(table.Bytes, table.Indirect(start + 4 * index))


def _table(table: Table, field: int) -> Iterator[Table]:
    if offset := _at(table, field):
        yield Table(table.Bytes, table.Indirect(table.Pos + offset))


def _text(table: Table, field: int) -> str:
    offset = _at(table, field)
    return bytes(table.String(table.Pos + offset)).decode() if offset else ""


def _number(table: Table, field: int) -> int:
    offset = _at(table, field)
    return int(table.Get(number_types.Uint64Flags, table.Pos + offset)) if offset else 0
