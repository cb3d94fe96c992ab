"""Latency of any SubNet predicted from the look-up table (LUT) of one device, compiled to arrays.

The latencies of a SubNet's operators are added up and corrected (`tasks.predict.correction`). Each operator
depends on few variables, so its latencies are a small dense array over their choices; predicting a matrix of
codes gathers and adds.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from tailor_ir import OperatorTerm, SuperNet
from tasks.artifacts import write_json
from tasks.errors import UserError
from tasks.lut import Lut
from tasks.predict.correction import UNCORRECTED, Correction

Codes = NDArray[np.int64]
Values = NDArray[np.float64]
NAMED_IN_ERRORS = 3


@dataclass(frozen=True, slots=True)
class Missing:
    """An operator without a latency, why, and the choices (variable column -> choice index) that have it."""

    operator: str
    reason: str
    choices: Mapping[int, int]

    def hits(self, code: NDArray[np.int64]) -> bool:
        """Whether the SubNet of this code (V,) has it."""
        return all(code[column] == choice for column, choice in self.choices.items())


@dataclass(frozen=True, slots=True)
class Table:
    """Sum of latencies [ms] over some operators: an array with one axis per variable they depend on."""

    columns: tuple[int, ...]
    values_ms: Values

    def gather(self, codes: Codes) -> Values:
        """Latencies (n,) for codes (n, V)."""
        picked: Values = self.values_ms[tuple(codes[:, column] for column in self.columns)]
        return picked


class LatencyPredictor:
    """Predicts latencies [ms] of one device for codes (n, V)."""

    def __init__(
        self,
        cardinalities: Sequence[int],
        tables: Sequence[Table],
        missing: Sequence[Missing] = (),
        correction: Correction = UNCORRECTED,
    ) -> None:
        self.cardinalities = tuple(cardinalities)
        self.tables = tuple(tables)
        self.missing = tuple(missing)
        self.correction = correction

    @classmethod
    def compile(cls, net: SuperNet, lut: Lut) -> Self:
        """Arrays from the operators of a SuperNet and their latencies; without a correction."""
        cardinalities = [len(variable.choices) for variable in net.space.variables]
        sums: dict[tuple[int, ...], Values] = {}
        missing: list[Missing] = []
        for term in net.operator_terms():
            values_ms = _term_values(term, cardinalities, lut, missing)
            columns = tuple(term.variables)
            sums[columns] = sums[columns] + values_ms if columns in sums else values_ms
        return cls(cardinalities, [Table(*item) for item in sums.items()], missing)

    def corrected(self, correction: Correction) -> Self:
        """The same predictor with another correction."""
        return type(self)(self.cardinalities, self.tables, self.missing, correction)

    def sum_ms(self, codes: Codes) -> Values:
        """Sums over the operators (n,), uncorrected. UserError when an operator has no latency."""
        total = np.zeros(len(codes))
        for table in self.tables:
            total += table.gather(codes)
        if np.isnan(total).any():
            raise self._unpredictable(codes[np.isnan(total)], len(codes))
        return total

    def predict(self, codes: Codes) -> Values:
        """Latencies (n,) [ms] of codes (n, V). UserError when an operator of a SubNet has no latency."""
        return self.correction.apply(self.sum_ms(codes))

    def _unpredictable(self, codes: Codes, total: int) -> UserError:
        hits = [missing for missing in self.missing if any(missing.hits(code) for code in codes)]
        named = list(dict.fromkeys(f"{hit.operator} ({hit.reason})" for hit in hits))
        more = f" and {len(named) - NAMED_IN_ERRORS} more" if len(named) > NAMED_IN_ERRORS else ""
        return UserError(
            "latency predictor",
            f"{len(codes)} of {total} SubNets have operators without a latency: "
            + ", ".join(named[:NAMED_IN_ERRORS])
            + more,
            next_step="take the choices that lead to them out of the space, or another device",
        )

    def save(self, path: Path) -> None:
        """Write JSON."""
        write_json(path, _to_file(self).model_dump(mode="json"))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote. UserError when the file is not that."""
        try:
            file = _File.model_validate_json(path.read_bytes())
        except (ValidationError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"latency predictor '{path}'", reason, next_step="run the predict stage again") from error
        return cls(
            file.cardinalities,
            [Table(table.columns, _from_list(table, file.cardinalities)) for table in file.tables],
            [Missing(row.operator, row.reason, dict(row.choices)) for row in file.missing],
            file.correction,
        )


def operators_sum_ms(net: SuperNet, lut: Lut, config: Mapping[str, Any]) -> float:
    """Sum over the operators of one SubNet, straight from the table [ms]; NaN when one has no latency."""
    return math.fsum(_latency_ms(lut, feature.digest) for feature in net.operators(dict(config)))


def _latency_ms(lut: Lut, digest: str) -> float:
    entry = lut.get(digest)
    return math.nan if entry is None or entry.p50_ms is None else entry.p50_ms


def _term_values(term: OperatorTerm, cardinalities: Sequence[int], lut: Lut, missing: list[Missing]) -> Values:
    """Latencies of one operator over its variables' choices; NaN where it has none, 0 where it is absent."""
    values_ms = np.full([cardinalities[column] for column in term.variables], np.nan)
    for indices, feature in term.features.items():
        values_ms[indices] = 0.0 if feature is None else _latency_ms(lut, feature.digest)
        if feature is not None and np.isnan(values_ms[indices]):
            entry = lut.get(feature.digest)
            reason = "not measured" if entry is None else str(entry.reason)
            name = f"{feature.operator} {feature.input_shapes[0]}"
            missing.append(Missing(name, reason, dict(zip(term.variables, indices, strict=True))))
    return values_ms


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _TableFile(_Strict):
    columns: tuple[int, ...]
    values_ms: tuple[float | None, ...]


class _MissingFile(_Strict):
    operator: str
    reason: str
    choices: tuple[tuple[int, int], ...]


class _File(_Strict):
    cardinalities: tuple[int, ...]
    correction: Correction
    tables: tuple[_TableFile, ...]
    missing: tuple[_MissingFile, ...]


def _to_file(predictor: LatencyPredictor) -> _File:
    return _File(
        cardinalities=predictor.cardinalities,
        correction=predictor.correction,
        tables=tuple(
            _TableFile(columns=table.columns, values_ms=tuple(_none_for_nan(table.values_ms.ravel().tolist())))
            for table in predictor.tables
        ),
        missing=tuple(
            _MissingFile(operator=row.operator, reason=row.reason, choices=tuple(row.choices.items()))
            for row in predictor.missing
        ),
    )


def _none_for_nan(values: Iterable[float]) -> Iterable[float | None]:
    return (None if math.isnan(value) else value for value in values)


def _from_list(table: _TableFile, cardinalities: Sequence[int]) -> Values:
    values_ms = np.array([math.nan if value is None else value for value in table.values_ms])
    return values_ms.reshape([cardinalities[column] for column in table.columns])
