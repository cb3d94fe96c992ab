"""Latency of any SubNet predicted from the look-up table (LUT) of one device, compiled to arrays.

The latencies of a SubNet's operators are corrected (`tasks.prediction.correction`) and added up. Each operator depends on few
variables, so a prediction for a matrix of codes gathers from small arrays (`tasks.prediction.sums`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from solvers.tables import Codes, Values, with_derived
from tailor_ir import OperatorFeature, SuperNet
from tasks.base.errors import UserError
from tasks.base.schemas.stored import Record, Stored
from tasks.measuring.lut import Lut
from tasks.prediction.correction import UNCORRECTED, Correction, OperatorSums, family
from tasks.prediction.sums import Sums, SumsRecord

NAMED_IN_ERRORS = 3
NEXT_STEP = "leave out the choices that lead to it, or measure again: autotailor profile … profile.remeasure=[failed]"


@dataclass(frozen=True, slots=True)
class Missing:
    """An operator without a latency, the reason, and the choices (variable column -> choice index) that lead to it."""

    operator: str
    reason: str
    choices: Mapping[int, int]

    def hits(self, code: NDArray[np.int64]) -> bool:
        """Whether the SubNet of this extended code (V + D,) has the operator."""
        return all(code[column] == choice for column, choice in self.choices.items())


class LatencyPredictor:
    """Predicts latencies [ms] of one device for codes (n, V)."""

    def __init__(self, sums: Sums, correction: Correction, unknown: Sums, missing: Sequence[Missing] = ()) -> None:
        """unknown: counts a SubNet's operators without a latency."""
        self.sums, self.correction, self.unknown, self.missing = sums, correction, unknown, tuple(missing)

    @classmethod
    def compile(cls, net: SuperNet, lut: Lut, correction: Correction = UNCORRECTED) -> Self:
        """Arrays from the operators of a SuperNet and their corrected latencies."""
        latencies = {feature: operator_ms(lut, feature, correction) for feature in net.unique_operators()}
        absent = {feature for feature, latency_ms in latencies.items() if math.isnan(latency_ms)}
        known = {feature: 0.0 if feature in absent else latency_ms for feature, latency_ms in latencies.items()}
        unknown = Sums.compile(net, {feature: float(feature in absent) for feature in latencies})
        return cls(Sums.compile(net, known), correction, unknown, _missing(net, lut, absent) if absent else ())

    def predict(self, codes: Codes) -> Values:
        """Latencies (n,) [ms] of codes (n, V). UserError when an operator of a SubNet has no latency."""
        if self.missing and (hit := self.unknown.predict(codes) > 0).any():
            raise self._unpredictable(codes[hit], len(codes))
        return self.sums.predict(codes) + self.correction.offset_ms

    def _unpredictable(self, codes: Codes, total: int) -> UserError:
        extended = with_derived(codes, self.unknown.derived)
        hits = [missing for missing in self.missing if any(missing.hits(code) for code in extended)]
        named = list(dict.fromkeys(f"{hit.operator} ({hit.reason})" for hit in hits))
        more = f" and {len(named) - NAMED_IN_ERRORS} more" if len(named) > NAMED_IN_ERRORS else ""
        return UserError(
            "latency predictor",
            f"{len(codes)} of {total} SubNets have operators without a latency: "
            + ", ".join(named[:NAMED_IN_ERRORS])
            + more,
            next_step=NEXT_STEP,
        )

    def to_record(self) -> "LatencyRecord":
        """The predictor as JSON; `of_record` gives an equal predictor."""
        missing = [
            _MissingRecord(operator=m.operator, reason=m.reason, choices=tuple(m.choices.items())) for m in self.missing
        ]
        sums, unknown = self.sums.to_record(), self.unknown.to_record()
        return LatencyRecord(sums=sums, correction=self.correction, unknown=unknown, missing=tuple(missing))

    @classmethod
    def of_record(cls, file: "LatencyRecord") -> Self:
        """The predictor that `to_record` described."""
        missing = [Missing(row.operator, row.reason, dict(row.choices)) for row in file.missing]
        return cls(Sums.of_record(file.sums), file.correction, Sums.of_record(file.unknown), missing)

    def save(self, path: Path) -> None:
        """Write JSON."""
        LatencyFile(**self.to_record().to_json()).write(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a predictor that `save` wrote. UserError for any other file."""
        return cls.of_record(LatencyFile.read(path))


def network_of(net: SuperNet, lut: Lut, config: Mapping[str, Any]) -> OperatorSums:
    """A SubNet's operators in the table. UserError when one has no latency."""
    sums_ms: dict[str, float] = {}
    count = 0
    for feature in net.operators(dict(config)):
        latency_ms = _latency_ms(lut, feature)
        if math.isnan(latency_ms):
            raise UserError("latency predictor", f"{_name(feature)} ({_reason(lut, feature)})", next_step=NEXT_STEP)
        if latency_ms > 0:
            count += 1
            sums_ms[family(feature)] = sums_ms.get(family(feature), 0.0) + latency_ms
    return OperatorSums(count, sums_ms)


def subnet_ms(net: SuperNet, lut: Lut, correction: Correction, config: Mapping[str, Any]) -> float:
    """Latency of one SubNet straight from the table [ms]; NaN if an operator has none."""
    return correction.offset_ms + math.fsum(operator_ms(lut, f, correction) for f in net.operators(dict(config)))


def _latency_ms(lut: Lut, feature: OperatorFeature) -> float:
    entry = lut.get(feature.digest)
    return math.nan if entry is None or entry.latency_ms is None else entry.latency_ms


def operator_ms(lut: Lut, feature: OperatorFeature, correction: Correction) -> float:
    """The contribution of one operator to a SubNet's latency [ms]; NaN if it has no latency."""
    return correction.operator_ms(family(feature), _latency_ms(lut, feature))


def _missing(net: SuperNet, lut: Lut, absent: set[OperatorFeature]) -> list[Missing]:
    """Every occurrence of an operator without a latency, with its choices."""
    found = []
    for term in net.operator_terms():
        operators, numbers = term.features.operators, term.features.numbers
        positions = [number for number, feature in enumerate(operators) if feature in absent]
        for at in np.argwhere(np.isin(numbers, positions)):
            feature = operators[int(numbers[tuple(at)])]
            choices = dict(zip(term.variables, at.tolist(), strict=True))
            found.append(Missing(_name(feature), _reason(lut, feature), choices))
    return found


def _name(feature: OperatorFeature) -> str:
    return f"{feature.operator} {feature.input_shapes[0] if feature.input_shapes else ''}"


def _reason(lut: Lut, feature: OperatorFeature) -> str:
    entry = lut.get(feature.digest)
    return "not measured" if entry is None else str(entry.reason)


class _MissingRecord(Record):
    operator: str
    reason: str
    choices: tuple[tuple[int, int], ...]


class LatencyRecord(Record):
    """`LatencyPredictor` as part of a file."""

    sums: SumsRecord
    correction: Correction
    unknown: SumsRecord
    missing: tuple[_MissingRecord, ...]


class LatencyFile(LatencyRecord, Stored):
    """`LatencyPredictor` in a file."""

    STAGE: ClassVar[str] = "predict"
    KIND: ClassVar[str] = "predictor"
