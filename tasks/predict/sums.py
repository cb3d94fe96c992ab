"""Sums over the operators of any SubNet: each unique operator counts a number, and the sum of a SubNet is gathered from tables.

An operator depends on few variables, so that the numbers of all its sizes are a small table (`solvers.tables`).
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from pydantic import FiniteFloat, model_validator

from solvers.tables import Codes, Gathering, Table, Values, merged
from tailor_ir import OperatorFeature, OperatorTerm, SuperNet
from tasks.schemas.stored import Record, Stored


class Sums:
    """Adds up one number for each operator of SubNets, which are codes (n, V)."""

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
        return cls(net.space.cardinalities.tolist(), [Table(*each) for each in sums.items()])

    def predict(self, codes: Codes) -> Values:
        """Sums (n,) of codes (n, V)."""
        return self._gathering(codes)

    @cached_property
    def _gathering(self) -> Gathering:
        return Gathering(self.cardinalities, merged(self.tables, self.cardinalities))

    def to_record(self) -> "SumsRecord":
        """As JSON; `of_record` gives equal sums."""
        tables = tuple(TableFile(columns=columns, values=tuple(v.ravel().tolist())) for columns, v in self.tables)
        return SumsRecord(cardinalities=self.cardinalities, tables=tables)

    @classmethod
    def of_record(cls, file: "SumsRecord") -> Self:
        """The sums that `to_record` described."""
        shapes = [[file.cardinalities[column] for column in table.columns] for table in file.tables]
        tables = [
            Table(table.columns, np.asarray(table.values).reshape(shape))
            for table, shape in zip(file.tables, shapes, strict=True)
        ]
        return cls(file.cardinalities, tables)

    def save(self, path: Path) -> None:
        """Write JSON."""
        SumsFile(**self.to_record().to_json()).write(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file that `save` wrote. UserError when the file is another one."""
        return cls.of_record(SumsFile.read(path))


def _numbers(term: OperatorTerm, numbers: Mapping[OperatorFeature, float], known: dict[int, Values]) -> Values:
    """The number of each unique operator, then 0 at the end, where the position of a skipped one (-1) points."""
    operators = term.features.operators
    if id(operators) not in known:
        known[id(operators)] = np.asarray([*(numbers[feature] for feature in operators), 0.0])
    return known[id(operators)]


class TableFile(Record):
    """A table, its values in row-major order."""

    columns: tuple[int, ...]
    values: tuple[FiniteFloat, ...]


class SumsRecord(Record):
    """`Sums` as a part of a file."""

    cardinalities: tuple[int, ...]
    tables: tuple[TableFile, ...]

    @model_validator(mode="after")
    def _tables_are_whole(self) -> Self:
        for table in self.tables:
            if not all(0 <= column < len(self.cardinalities) for column in table.columns):
                raise ValueError(f"columns {table.columns} of {len(self.cardinalities)} variables")
            if len(table.values) != prod(self.cardinalities[column] for column in table.columns):
                raise ValueError(f"{len(table.values)} values over columns {table.columns}")
        return self


class SumsFile(SumsRecord, Stored):
    """`Sums` in a file."""

    STAGE: ClassVar[str] = "predict"
    KIND: ClassVar[str] = "predictor"
