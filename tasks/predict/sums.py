"""Sums over the operators of any SubNet, as arrays: what each unique operator counts, gathered over few variables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from tailor_ir import OperatorFeature, OperatorTerm, SuperNet
from tasks.artifacts import write_json
from tasks.errors import UserError

Codes = NDArray[np.int64]
Values = NDArray[np.float64]
Table = tuple[tuple[int, ...], Values]  # columns of choice indices, and sums with one axis for each


class Sums:
    """Adds up one number of each operator of SubNets, which are codes (n, V)."""

    def __init__(self, cardinalities: Sequence[int], tables: Sequence[Table]) -> None:
        self.cardinalities, self.tables = tuple(cardinalities), tuple(tables)

    @classmethod
    def compile(cls, net: SuperNet, numbers: Mapping[OperatorFeature, float]) -> Self:
        """Tables from the number of every unique operator. KeyError: one has none."""
        sums: dict[tuple[int, ...], Values] = {}
        known: dict[int, Values] = {}
        for term in net.operator_terms():
            counted = _numbers(term, numbers, known)[term.features.numbers]
            columns = term.variables
            sums[columns] = sums[columns] + counted if columns in sums else counted
        return cls(net.space.cardinalities.tolist(), tuple(sums.items()))

    def predict(self, codes: Codes) -> Values:
        """Sums (n,) of codes (n, V)."""
        total = np.zeros(len(codes))
        for columns, values in self.tables:
            total += values[tuple(codes[:, column] for column in columns)]
        return total

    def save(self, path: Path) -> None:
        """Write JSON."""
        tables = tuple(_TableFile(columns=c, values=tuple(v.ravel().tolist())) for c, v in self.tables)
        write_json(path, _File(cardinalities=self.cardinalities, tables=tables).model_dump(mode="json"))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote. UserError when the file is not that."""
        try:
            file = _File.model_validate_json(path.read_bytes())
            tables = [
                (t.columns, np.asarray(t.values).reshape([file.cardinalities[column] for column in t.columns]))
                for t in file.tables
            ]
        except (ValidationError, OSError, ValueError, IndexError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"sums '{path}'", reason, next_step="run the predict stage again") from error
        return cls(file.cardinalities, tables)


def _numbers(term: OperatorTerm, numbers: Mapping[OperatorFeature, float], known: dict[int, Values]) -> Values:
    """The number of each unique operator, then 0 at the end, where the position of a skipped one (-1) points."""
    operators = term.features.operators
    if id(operators) not in known:
        known[id(operators)] = np.asarray([*(numbers[feature] for feature in operators), 0.0])
    return known[id(operators)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _TableFile(_Strict):
    columns: tuple[int, ...]
    values: tuple[float, ...]


class _File(_Strict):
    cardinalities: tuple[int, ...]
    tables: tuple[_TableFile, ...]
