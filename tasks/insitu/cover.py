"""A few SubNets that together contain every operator, for measuring in situ.

An operator depends on few variables, so one SubNet can bring many new operators. SubNets are chosen one after the other. A
choice begins with a missing operator. The other variables are then set one at a time to the choice that brings most new
operators, until no single change brings more. Operators share the caches, and SubNets chosen in this way are not typical. Where
they are few, random SubNets with the rarest operators follow.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tailor_ir import OperatorFeature, SuperNet

Code = NDArray[np.int64]
SWEEPS = 3
ENOUGH_SUBNETS, ENOUGH_TIMES = 150, 20


@dataclass(frozen=True, slots=True)
class _Occurrence:
    """An operator of the largest network: its variables, and for their choices the operator's number or -1."""

    columns: tuple[int, ...]
    numbers: NDArray[np.int32]

    def along(self, code: Code, column: int) -> NDArray[np.int32]:
        """The operators for every choice of one of its variables, the others as in `code` (V,)."""
        picked = tuple(slice(None) if own == column else code[own] for own in self.columns)
        found: NDArray[np.int32] = self.numbers[picked]
        return found


def covering_codes(
    net: SuperNet, wanted: AbstractSet[OperatorFeature], rng: np.random.Generator, times: int = ENOUGH_TIMES
) -> Code:
    """(n, V) codes of different SubNets that have all `wanted` operators.

    Where fewer than `ENOUGH_SUBNETS` do, random SubNets follow, until each operator is in `times` of them.
    """
    return _Cover(net, wanted, rng, times).codes()


class _Cover:
    def __init__(
        self, net: SuperNet, wanted: AbstractSet[OperatorFeature], rng: np.random.Generator, times: int
    ) -> None:
        self._rng, self._space, self._times = rng, net.space, times
        self._cardinalities = np.array([len(variable.choices) for variable in net.space.variables])
        terms = net.operator_terms()
        self._occurrences = [_Occurrence(term.variables, term.features.numbers) for term in terms]
        self._of_column = [
            [one for one in self._occurrences if c in one.columns] for c in range(len(self._cardinalities))
        ]
        operators = terms[0].features.operators
        self._missing = np.zeros(len(operators) + 1, np.int64)  # the last: "skipped", number -1
        self._missing[[number for number, feature in enumerate(operators) if feature in wanted]] = 1

    def codes(self) -> Code:
        """One SubNet after the other, the greedy ones first."""
        codes: dict[bytes, Code] = {}
        wanted = self._missing.copy()
        seen = np.where(wanted, 0, self._times)
        for occurrence in self._occurrences:
            for at in np.argwhere(self._missing[occurrence.numbers] > 0):
                fixed = self._fixed(occurrence.columns, at) if self._missing[occurrence.numbers[tuple(at)]] else None
                if fixed is not None:
                    code = self._space.canonical_codes(self._around(fixed)[None])[0]
                    found = self._numbers(code)
                    self._missing[found] = 0
                    seen[np.unique(found)] += 1
                    codes[code.tobytes()] = code
        stands = self._where(wanted)
        for _ in range(ENOUGH_SUBNETS):
            if len(codes) >= ENOUGH_SUBNETS or seen.min() >= self._times:
                break
            occurrence, at = stands[int(self._rng.choice(np.flatnonzero(seen == seen.min())))]
            fixed = self._fixed(occurrence.columns, at[int(self._rng.integers(len(at)))])
            if fixed is None:
                continue
            code = self._space.canonical_codes(self._random(fixed)[None])[0]
            seen[np.unique(self._numbers(code))] += 1
            codes.setdefault(code.tobytes(), code)
        return np.array(list(codes.values()), np.int64).reshape(len(codes), len(self._cardinalities))

    def _where(self, wanted: NDArray[np.int64]) -> dict[int, tuple[_Occurrence, NDArray[np.int64]]]:
        """For each wanted operator the choices (n, columns) with which it stands in one of its places."""
        found: dict[int, tuple[_Occurrence, NDArray[np.int64]]] = {}
        for occurrence in self._rng.permutation(np.array(self._occurrences, object)):
            for number in np.unique(occurrence.numbers):
                if number >= 0 and wanted[number] and number not in found:
                    found[int(number)] = occurrence, np.argwhere(occurrence.numbers == number)
        return found

    def _random(self, fixed: Mapping[int, int]) -> Code:
        """A random SubNet with these values of some variables."""
        code: Code = self._rng.integers(self._cardinalities)
        code[list(fixed)] = list(fixed.values())
        return code

    def _around(self, fixed: Mapping[int, int]) -> Code:
        """A SubNet with these values of some variables and as many missing operators as single changes find."""
        code = self._random(fixed)
        free = [column for column in range(len(code)) if column not in fixed and self._cardinalities[column] > 1]
        for _ in range(SWEEPS):
            before = code.copy()
            for column in self._rng.permutation(free):
                extended = self._space.extended(code[None])[0]
                none = np.zeros(self._cardinalities[column], np.int64)
                gains = sum((self._missing[one.along(extended, column)] for one in self._of_column[column]), none)
                ties = np.flatnonzero(gains == np.max(gains))
                if gains[code[column]] != np.max(gains):
                    code[column] = self._rng.choice(ties)
            if np.array_equal(before, code):
                break
        return code

    def _fixed(self, columns: Sequence[int], at: NDArray[np.int64]) -> dict[int, int] | None:
        """Values of variables by which columns of extended codes have these values; None: no SubNet has them."""
        found = self._satisfied(list(zip(columns, at.tolist(), strict=True)), {})
        variables = len(self._cardinalities)
        return None if found is None else {column: value for column, value in found.items() if column < variables}

    def _satisfied(self, wanted: Sequence[tuple[int, int]], fixed: Mapping[int, int]) -> Mapping[int, int] | None:
        """`fixed` with the wanted values, and those that derived columns need, the largest ones first."""
        if not wanted:
            return fixed
        (column, value), *others = wanted
        if column in fixed:
            return self._satisfied(others, fixed) if fixed[column] == value else None
        fixed, variables = {**fixed, column: value}, len(self._cardinalities)
        if column < variables:
            return self._satisfied(others, fixed)
        columns, values = self._space.derived[column - variables]
        for at in reversed(np.argwhere(values == bool(value)).tolist()):
            found = self._satisfied([*zip(columns, at, strict=True), *others], fixed)
            if found is not None:
                return found
        return None

    def _numbers(self, code: Code) -> NDArray[np.int32]:
        code = self._space.extended(code[None])[0]
        return np.array([occurrence.numbers[tuple(code[list(occurrence.columns)])] for occurrence in self._occurrences])
