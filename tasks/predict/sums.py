"""Sums over the operators of any SubNet, as arrays: what each unique operator counts, gathered over few variables."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError, model_validator

from tailor_ir import OperatorFeature, OperatorTerm, SuperNet
from tasks.artifacts import write_json
from tasks.errors import UserError

Codes = NDArray[np.int64]
Values = NDArray[np.float64]
ENTRIES = 4096  # of a table that two were merged into: 32 KiB
AGAIN = "run the predict stage again: autotailor predict …"
CHUNK = 8192  # SubNets at a time, whose positions fit in a cache
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
        return self._gathering(codes)

    @cached_property
    def _gathering(self) -> "_Gathering":
        return _Gathering(self.cardinalities, merged(self.tables, self.cardinalities))

    def to_file(self) -> "SumsFile":
        """As JSON; `of_file` gives equal sums."""
        tables = tuple(TableFile(columns=columns, values=tuple(v.ravel().tolist())) for columns, v in self.tables)
        return SumsFile(cardinalities=self.cardinalities, tables=tables)

    @classmethod
    def of_file(cls, file: "SumsFile") -> Self:
        """What `to_file` described."""
        shapes = [[file.cardinalities[column] for column in table.columns] for table in file.tables]
        tables = [
            (table.columns, np.asarray(table.values).reshape(shape))
            for table, shape in zip(file.tables, shapes, strict=True)
        ]
        return cls(file.cardinalities, tables)

    def save(self, path: Path) -> None:
        """Write JSON."""
        write_json(path, self.to_file().model_dump(mode="json"))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote. UserError when the file is not that."""
        return cls.of_file(read_file(SumsFile, path))


def merged(tables: Sequence[Table], cardinalities: Sequence[int]) -> list[Table]:
    """Fewer tables with the same sums: two become one while it has no more than ENTRIES entries, smallest growth first."""

    def size(columns: Iterable[int]) -> int:
        return prod(cardinalities[column] for column in columns)

    left = [(frozenset(columns), *_ascending(columns, values)) for columns, values in tables]
    while True:
        pairs = (
            (size(left[i][0] | left[j][0]) - size(left[i][0]) - size(left[j][0]), i, j)
            for i, j in combinations(range(len(left)), 2)
            if size(left[i][0] | left[j][0]) <= ENTRIES
        )
        best = min(pairs, default=None)
        if best is None:
            return [(columns, values) for _, columns, values in left]
        second, first = left.pop(best[2]), left.pop(best[1])
        union = tuple(sorted(first[0] | second[0]))
        spread = [_over(columns, values, union) for _, columns, values in (first, second)]
        left.append((frozenset(union), union, spread[0] + spread[1]))


def _ascending(columns: tuple[int, ...], values: Values) -> Table:
    order = sorted(range(len(columns)), key=columns.__getitem__)
    return tuple(columns[axis] for axis in order), values.transpose(order)


def _over(columns: tuple[int, ...], values: Values, union: tuple[int, ...]) -> Values:
    """An array over `columns` (ascending) as one that broadcasts over `union`."""
    sizes = iter(values.shape)
    return values.reshape([next(sizes) if column in columns else 1 for column in union])


class _Gathering:
    """Tables as one long array. A matrix product gives the positions of all SubNets' entries in it."""

    def __init__(self, cardinalities: Sequence[int], tables: Sequence[Table]) -> None:
        self._strides = np.zeros((len(tables), len(cardinalities)), np.float32)  # exact below 2^24
        for row, (columns, values) in enumerate(tables):
            steps = np.cumprod([1, *values.shape[:0:-1]])[::-1]
            self._strides[row, list(columns)] = steps[: len(columns)]
        sizes = [values.size for _, values in tables]
        self._starts = np.cumsum([0, *sizes])[:-1, None].astype(np.int32)
        self._values = np.concatenate([values.ravel() for _, values in tables]) if tables else np.zeros(0)

    def __call__(self, codes: Codes) -> Values:
        total = np.zeros(len(codes))
        for first in range(0, len(codes), CHUNK):
            chunk = codes[first : first + CHUNK].T.astype(np.float32)
            positions = (self._strides @ chunk).astype(np.int32)
            positions += self._starts
            total[first : first + CHUNK] = self._values.take(positions).sum(axis=0)
        return total


def _numbers(term: OperatorTerm, numbers: Mapping[OperatorFeature, float], known: dict[int, Values]) -> Values:
    """The number of each unique operator, then 0 at the end, where the position of a skipped one (-1) points."""
    operators = term.features.operators
    if id(operators) not in known:
        known[id(operators)] = np.asarray([*(numbers[feature] for feature in operators), 0.0])
    return known[id(operators)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TableFile(_Strict):
    """A table, its values in row-major order."""

    columns: tuple[int, ...]
    values: tuple[FiniteFloat, ...]


class SumsFile(_Strict):
    """`Sums` in a file."""

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


FileModel = TypeVar("FileModel", bound=BaseModel)


def read_file(model: type[FileModel], path: Path) -> FileModel:
    """A predictor's JSON file. UserError when it is not that."""
    try:
        return model.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"predictor '{path}'", f"cannot be read ({error.strerror})", next_step=AGAIN) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"predictor '{path}'", f"{where}: {first['msg']}".lstrip(": "), next_step=AGAIN) from error
