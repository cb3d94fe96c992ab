"""The first row of a table in which three columns are at most their limits: exact, in a few operations on long integers.

Rows are in order of preference. For every rank of every column, one integer holds the set of the rows below that rank as
bits. A query finds the rank of each limit by bisection and intersects one set per column. The most preferred row has the
highest bit, so the length of the intersection gives the row.

A large table keeps sets only for every `BLOCK`-th rank. Rows between such a rank and the limit's own lie in one block of each
column. The ranks of a block's rows are fields of one integer per column, and one subtraction compares all of them with the
limit's rank: a field's highest bit stays set if the row is within. This bounds the time of a query.

Legend: N rows, B rows of a block.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Ranks = NDArray[np.int64]

LARGEST_EXACT = 4096
SHIFT = 7
BLOCK = 1 << SHIFT


class FirstWithin:
    """Index over columns (N, 3), whose rows are in order of preference. Any values but NaN."""

    __slots__ = ("_blocks", "_guards", "_ones", "_sets", "_steps", "_values", "_width", "rows")

    def __init__(self, columns_N3: Values) -> None:
        self.rows = len(columns_N3)
        large = self.rows > LARGEST_EXACT
        orders_3N = np.argsort(columns_N3, 0, kind="stable").T
        ranks_3N = np.argsort(orders_3N, 1)
        self._values: Sequence[Sequence[float]]
        sorted_3N = np.take_along_axis(columns_N3.T, orders_3N, 1)
        self._values = [array("d", values_N) for values_N in sorted_3N] if large else sorted_3N.tolist()
        self._steps: list[list[float]] = sorted_3N[:, ::BLOCK].tolist()
        self._sets = [list(_sets(order_N, BLOCK if large else 1)) for order_N in orders_3N]
        self._width = self.rows.bit_length() + 1
        self._ones = _packed(np.ones(BLOCK, np.int64), self._width)
        self._guards = self._ones << (self._width - 1)
        self._blocks = [list(_blocks(order_N, ranks_3N, self._width)) for order_N in orders_3N] if large else []

    def first(self, a: float, b: float, c: float) -> int:
        """The first row whose three values are at most the limits; the number of rows if there is none."""
        if self._blocks:
            return self._first_of_many(a, b, c)
        values_a, values_b, values_c = self._values
        sets_a, sets_b, sets_c = self._sets
        common = (
            sets_a[bisect_right(values_a, a)] & sets_b[bisect_right(values_b, b)] & sets_c[bisect_right(values_c, c)]
        )
        return self.rows - common.bit_length()

    def _first_of_many(self, a: float, b: float, c: float) -> int:
        rank_a, rank_b, rank_c = self._rank(0, a), self._rank(1, b), self._rank(2, c)
        sets_a, sets_b, sets_c = self._sets
        common = sets_a[rank_a >> SHIFT] & sets_b[rank_b >> SHIFT] & sets_c[rank_c >> SHIFT]
        best = self.rows - common.bit_length()
        guards, ones, width = self._guards, self._ones, self._width
        limits_a, limits_b, limits_c = (guards + (rank - 1) * ones for rank in (rank_a, rank_b, rank_c))
        for blocks, rank in zip(self._blocks, (rank_a, rank_b, rank_c), strict=True):
            rows, ranks_a, ranks_b, ranks_c = blocks[rank >> SHIFT]
            if rows[0] < best:
                within = guards & (limits_a - ranks_a) & (limits_b - ranks_b) & (limits_c - ranks_c)
                if within:
                    best = min(best, rows[BLOCK - 1 - (within.bit_length() - 1) // width])
        return best

    def _rank(self, column: int, limit: float) -> int:
        """The number of a column's values that are at most a limit: first by every 128th of them, which fit into the caches."""
        steps = bisect_right(self._steps[column], limit)
        if not steps:
            return 0
        return bisect_right(self._values[column], limit, (steps - 1) << SHIFT, min(steps << SHIFT, self.rows))


def _sets(order_N: Ranks, step: int) -> Iterator[int]:
    """The rows among the first 0, step, 2 · step, … of an order, as integers: the bit of row n is N − 1 − n."""
    inside_N = np.zeros(len(order_N), bool)
    spare = -len(order_N) % 8
    for start in range(0, len(order_N) + 1, step):
        yield int.from_bytes(np.packbits(inside_N).tobytes(), "big") >> spare
        inside_N[order_N[start : start + step]] = True


def _blocks(order_N: Ranks, ranks_3N: Ranks, width: int) -> Iterator[tuple[Sequence[int], int, int, int]]:
    """Blocks of an order: their rows in order of preference, and the ranks of these in each column as fields.

    The last block is padded with rows that are within no limit.
    """
    rows = len(order_N)
    for start in range(0, rows + 1, BLOCK):
        rows_B = np.sort(order_N[start : start + BLOCK])
        missing = np.full(BLOCK - len(rows_B), rows)
        a, b, c = (_packed(np.append(ranks_N[rows_B], missing), width) for ranks_N in ranks_3N)
        yield array("i", np.append(rows_B, missing).tolist()), a, b, c


def _packed(numbers_B: Ranks, width: int) -> int:
    """Numbers as fields of `width` bits, the first one highest."""
    bits_BW = (numbers_B[:, None] >> np.arange(width - 1, -1, -1)) & 1
    return int.from_bytes(np.packbits(bits_BW.astype(bool)).tobytes(), "big") >> (-bits_BW.size % 8)
