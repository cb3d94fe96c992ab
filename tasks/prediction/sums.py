"""Sums over the operators of any SubNet: each unique operator has a number, and a SubNet's sum is gathered from tables.

An operator depends on few variables, so the numbers of all its sizes form a small table (`solvers.tables`).
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from pydantic import FiniteFloat, model_validator

from solvers.tables import Codes, Derived, Gathering, Table, Values, merged, with_derived
from tailor_ir import OperatorFeature, SuperNet
from tasks.base.schemas.stored import Record, Stored


class Sums:
    """Adds up one number for each operator of SubNets, which are codes (n, V).

    cardinalities: of the variables. derived: further columns behind them, which tables may use, too.
    """

    def __init__(self, cardinalities: Sequence[int], tables: Sequence[Table], derived: Sequence[Derived] = ()) -> None:
        self.cardinalities, self.tables, self.derived = tuple(cardinalities), tuple(tables), tuple(derived)

    @classmethod
    def compile(cls, net: SuperNet, numbers: Mapping[OperatorFeature, float]) -> Self:
        """Tables from the number of every unique operator. KeyError: an operator has no number."""
        sums: dict[tuple[int, ...], Values] = {}
        known: dict[int, Values] = {}
        for term in net.operator_terms():
            operators, columns = term.features.operators, term.variables
            if id(operators) not in known:  # the last number, a 0, is that of a skipped operator (-1)
                known[id(operators)] = np.asarray([*(numbers[feature] for feature in operators), 0.0])
            counted = known[id(operators)][term.features.numbers]
            sums[columns] = sums[columns] + counted if columns in sums else counted
        tables = [Table(columns, values) for columns, values in sums.items()]
        return cls(net.space.cardinalities.tolist(), tables, net.space.derived)

    def predict(self, codes: Codes) -> Values:
        """Sums (n,) of codes (n, V)."""
        return self._gathering(with_derived(codes, self.derived))

    @property
    def all_cardinalities(self) -> tuple[int, ...]:
        """Number of values of each column that tables may be over."""
        return *self.cardinalities, *[2] * len(self.derived)

    @cached_property
    def _gathering(self) -> Gathering:
        return Gathering(self.all_cardinalities, merged(self.tables, self.all_cardinalities))

    def to_record(self) -> "SumsRecord":
        """The sums as JSON; `of_record` gives equal sums."""
        tables = tuple(TableFile(columns=columns, values=tuple(v.ravel().tolist())) for columns, v in self.tables)
        bits = ("".join("01"[int(value)] for value in each.values.ravel()) for each in self.derived)
        derived = (DerivedFile(columns=one.columns, values=own) for one, own in zip(self.derived, bits, strict=True))
        return SumsRecord(cardinalities=self.cardinalities, tables=tables, derived=tuple(derived))

    @classmethod
    def of_record(cls, file: "SumsRecord") -> Self:
        """The sums that `to_record` described."""
        tables = [
            Table(table.columns, np.asarray(table.values).reshape(file.shape(table.columns))) for table in file.tables
        ]
        derived = [
            Derived(each.columns, np.array([bit == "1" for bit in each.values]).reshape(file.shape(each.columns)))
            for each in file.derived
        ]
        return cls(file.cardinalities, tables, derived)

    def save(self, path: Path) -> None:
        """Write JSON."""
        SumsFile(**self.to_record().to_json()).write(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file that `save` wrote. UserError for any other file."""
        return cls.of_record(SumsFile.read(path))


class DerivedFile(Record):
    """A derived column, its values in row-major order: a 1 or a 0 for each."""

    columns: tuple[int, ...]
    values: str


class TableFile(Record):
    """A table, its values in row-major order."""

    columns: tuple[int, ...]
    values: tuple[FiniteFloat, ...]


class SumsRecord(Record):
    """`Sums` as part of a file."""

    cardinalities: tuple[int, ...]
    tables: tuple[TableFile, ...]
    derived: tuple[DerivedFile, ...] = ()

    def shape(self, columns: Sequence[int]) -> list[int]:
        """The number of values of each given column."""
        variables = len(self.cardinalities)
        return [self.cardinalities[column] if column < variables else 2 for column in columns]

    @model_validator(mode="after")
    def _tables_are_whole(self) -> Self:
        most = len(self.cardinalities)
        for each in self.derived:
            self._check(each.columns, len(each.values), most)
            most += 1
        for table in self.tables:
            self._check(table.columns, len(table.values), most)
        return self

    def _check(self, columns: tuple[int, ...], values: int, most: int) -> None:
        if not all(0 <= column < most for column in columns):
            raise ValueError(f"columns {columns} of {most}")
        if values != prod(self.shape(columns)):
            raise ValueError(f"{values} values over columns {columns}")


class PredictorFile(Stored):
    """A file of a predictor."""

    STAGE: ClassVar[str] = "predict"
    KIND: ClassVar[str] = "predictor"


class SumsFile(SumsRecord, PredictorFile):
    """`Sums` in a file."""


def mac_sums(net: SuperNet) -> Sums:
    """Multiply-accumulates of one sample; as `SuperNet.macs`."""
    return Sums.compile(net, {feature: feature.macs for feature in net.unique_operators()})


def parameter_sums(net: SuperNet) -> Sums:
    """Parameters, BatchNorm folded; as `SuperNet.parameters`."""
    return Sums.compile(net, {feature: feature.parameters for feature in net.unique_operators()})
