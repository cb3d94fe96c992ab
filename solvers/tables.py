"""Tables over few variables: spread over more variables, added, merged, and gathered for many codes; and errors.

Codes are integer matrices (n, V): a row is an assignment, a column a variable, an entry the index of a choice. Errors
are for problems that a solver cannot solve. Callers turn each into a message for their user.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from math import prod
from typing import NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray


class SolverError(Exception):
    """The base of all errors of this package."""


class NotANumber(SolverError):
    """A table has a NaN entry."""


class TooEntangled(SolverError):
    """Too many variables share tables: in every order of elimination the tables become too large."""

    def __init__(self, entries: float) -> None:
        """entries: total size of all tables in the best order that was found."""
        super().__init__(f"tables of {entries:.1e} numbers")
        self.entries = entries


class Infeasible(SolverError):
    """No code is within the budgets."""


class Undecided(Infeasible):
    """No allowed code was found, but one may exist; its gain is at most `most`."""

    def __init__(self, most: float) -> None:
        super().__init__(f"a gain of {most:g} at most")
        self.most = most


Codes = NDArray[np.int64]
Indices = NDArray[np.int64]
Values = NDArray[np.float64]
ENTRIES = 4096  # of a merged table: 32 KiB
CHUNK = 8192  # codes at a time, so that their positions fit in a cache
Number = TypeVar("Number", bound=np.generic)


class Table(NamedTuple):
    """A function of few variables: `columns` are the variables, `values` has one axis for each column, in their order."""

    columns: tuple[int, ...]
    values: Values

    @classmethod
    def constant(cls, value: float) -> Self:
        """A table over no variable."""
        return cls((), np.asarray(value, np.float64))

    def ascending(self) -> "Table":
        """The same table with ascending columns."""
        order = _ascending(self.columns)
        return Table(tuple(self.columns[axis] for axis in order), np.asarray(self.values).transpose(order))

    def over(self, scope: Sequence[int]) -> Values:
        """The values, as an array that broadcasts over `scope`: see `spread`."""
        return spread(self.columns, self.values, scope)

    def scaled(self, factor: float) -> "Table":
        """The table times a number."""
        return Table(self.columns, factor * np.asarray(self.values))


def spread(columns: Sequence[int], values: NDArray[Number], scope: Sequence[int]) -> NDArray[Number]:
    """Values over `columns` as an array that broadcasts over `scope`, which ascends and contains the columns.

    The result has an axis for each variable of the scope; the axis of a variable outside `columns` has length 1.
    """
    ordered = np.asarray(values).transpose(_ascending(columns))
    sizes = iter(ordered.shape)
    return ordered.reshape([next(sizes) if column in columns else 1 for column in scope])


def _ascending(columns: Sequence[int]) -> list[int]:
    """The axes of a table in the order of ascending columns."""
    return sorted(range(len(columns)), key=columns.__getitem__)


def total(tables: Iterable[Table], scope: Sequence[int], cardinalities: Sequence[int]) -> Values:
    """The sum of tables as one array with an axis for each variable of `scope`, which ascends and contains all columns."""
    found = np.zeros([cardinalities[column] for column in scope])
    for columns, values in tables:
        found += spread(columns, values, scope)
    return found


def merged(tables: Sequence[Table], cardinalities: Sequence[int]) -> list[Table]:
    """Fewer tables with the same sum, columns ascending.

    Two tables become one while their union has no more than ENTRIES entries, the pair that grows least first.
    """

    def size(columns: Iterable[int]) -> int:
        return prod([cardinalities[column] for column in columns])

    scopes: list[frozenset[int]] = []
    left: dict[int, Table] = {}  # by position in `scopes`
    pairs: list[tuple[int, int, int]] = []

    def add(table: Table) -> None:
        number, scope = len(scopes), frozenset(table.columns)
        scopes.append(scope)
        for other in left:
            union = size(scope | scopes[other])
            if union <= ENTRIES:
                heappush(pairs, (union - size(scopes[other]) - size(scope), other, number))
        left[number] = table

    for table in tables:
        add(table.ascending())
    while pairs:
        _, one, other = heappop(pairs)
        if one in left and other in left:
            first, second = left.pop(one), left.pop(other)
            union = tuple(sorted(scopes[one] | scopes[other]))
            add(Table(union, first.over(union) + second.over(union)))
    return list(left.values())


class Derived(NamedTuple):
    """A column determined by earlier columns: `values` (0 or 1) has one axis for each of `columns`.

    Derived columns come after the columns of the variables, in the order in which they are defined.
    """

    columns: tuple[int, ...]
    values: NDArray[np.bool_]


def with_derived(codes: Codes, derived: Sequence[Derived]) -> Codes:
    """Codes (n, V) with the derived columns behind them (n, V + D)."""
    if not derived:
        return codes
    variables = codes.shape[1]
    found = np.empty((len(codes), variables + len(derived)), codes.dtype)
    found[:, :variables] = codes
    for column, (columns, values) in enumerate(derived, start=variables):
        found[:, column] = values[tuple(found[:, one] for one in columns)]
    return found


class Gathering:
    """Sums of tables for many codes.

    All tables lie in one array; a matrix product gives the positions of their entries in it.
    """

    def __init__(self, cardinalities: Sequence[int], tables: Sequence[Table]) -> None:
        self._strides = np.zeros((len(tables), len(cardinalities)), np.float32)  # exact below 2^24
        for row, (columns, values) in enumerate(tables):
            strides = np.cumprod([1, *values.shape[:0:-1]])[::-1]
            self._strides[row, list(columns)] = strides[: len(columns)]
        sizes = [values.size for _, values in tables]
        self._starts = np.cumsum([0, *sizes])[:-1, None].astype(np.int32)
        self._values = np.concatenate([values.ravel() for _, values in tables]) if tables else np.zeros(0)

    def __call__(self, codes: Codes) -> Values:
        """The sum (n,) of the tables at each code (n, V)."""
        sums = np.zeros(len(codes))
        for first in range(0, len(codes), CHUNK):
            chunk = codes[first : first + CHUNK].T.astype(np.float32)
            positions = (self._strides @ chunk).astype(np.int32)
            positions += self._starts
            sums[first : first + CHUNK] = self._values.take(positions).sum(axis=0)
        return sums
