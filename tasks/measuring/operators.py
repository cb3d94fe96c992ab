"""Stage "enumerate": every operator of any SubNet of a SuperNet; and a few SubNets that together contain every operator.

SubNets are chosen greedily: each begins with a missing operator; then the other variables are set one at a time to the choice
that covers most new operators, until no single change covers more. Operators share the caches, and greedily chosen SubNets are
not typical. If they are few, random SubNets with the rarest operators follow.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tailor_ir
from solvers.tables import Codes
from tailor_ir import Choice, OperatorFeature, SuperNet
from tasks.base.progress import Progress
from tasks.base.schemas.placed import OPERATORS_FILE, Operators, UniqueOperator
from tasks.base.schemas.results import EnumerateResult
from tasks.base.schemas.stored import StageResult
from tasks.measuring.settings import ENOUGH_TIMES


def run(net_folder: Path, out_folder: Path, progress: Progress, batch: int = 1) -> StageResult:
    """Write `operators.json` from a folder of `SuperNet.save`, for a batch of samples; returns the summary."""
    net = tailor_ir.load(net_folder, batch=batch)
    start = time.perf_counter()
    witnesses = net.unique_operators()
    enumerate_s = time.perf_counter() - start
    default = net.space.max_config
    described = {f: {n: c for n, c in config.items() if c != default[n]} for f, config in witnesses.items()}
    write_operators(out_folder / OPERATORS_FILE, described)
    progress.metrics({"unique_operators": len(witnesses), "enumerate_s": enumerate_s}, step=0)
    space = net.space
    return EnumerateResult(
        variables=len(space.variables),
        modifications=space.modifications,
        codes=space.codes,
        distinct=space.distinct,
        unique_operators=len(witnesses),
        operators=dict(Counter(feature.operator for feature in witnesses).most_common()),
        enumerate_s=round(enumerate_s, 6),
    ).to_json()


def write_operators(path: Path, witnesses: Mapping[OperatorFeature, Mapping[str, Choice]]) -> None:
    """Write every operator with its digest and its witness: the changes to the largest SubNet that lead to the operator."""
    rows = (
        UniqueOperator(digest=feature.digest, feature=feature.to_json(), witness=dict(config))
        for feature, config in witnesses.items()
    )
    Operators(operators=tuple(sorted(rows, key=lambda row: row.digest))).write(path)


LISTED = ("modifications", "codes", "distinct", "unique_operators", "enumerate_s")


def listing(folder: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of the space, time [s], and every operator (`UniqueOperator`): beside the stages in `enumerate --json`."""
    operators = Operators.read(folder / OPERATORS_FILE).to_json()["operators"]
    return {name: result[name] for name in LISTED} | {"operators": operators}


def read_operators(folder: Path) -> dict[str, OperatorFeature]:
    """Digest -> operator, from the folder of this stage."""
    rows = Operators.read(folder / OPERATORS_FILE).operators
    return {row.digest: OperatorFeature.from_json(row.feature) for row in rows}


SWEEPS = 3
ENOUGH_SUBNETS = 150


@dataclass(frozen=True, slots=True)
class _Occurrence:
    """An operator of the largest network: its variables, and for each of their choices the operator's number or -1."""

    columns: tuple[int, ...]
    numbers: NDArray[np.int32]

    def along(self, code: Codes, column: int) -> NDArray[np.int32]:
        """The operator numbers for every choice of one of its variables; the other variables are set as in `code` (V,)."""
        picked = tuple(slice(None) if own == column else code[own] for own in self.columns)
        found: NDArray[np.int32] = self.numbers[picked]
        return found


def covering_codes(
    net: SuperNet, wanted: AbstractSet[OperatorFeature], rng: np.random.Generator, times: int = ENOUGH_TIMES
) -> Codes:
    """Codes (n, V) of different SubNets that together contain all `wanted` operators.

    If these are fewer than `ENOUGH_SUBNETS`, random SubNets follow until each operator is in `times` SubNets.
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
        self._missing = np.zeros(len(operators) + 1, np.int64)  # last entry: "skipped", number -1
        self._missing[[number for number, feature in enumerate(operators) if feature in wanted]] = 1
        known = net.unique_operators()
        self._example = [known[feature] for feature in operators]

    def codes(self) -> Codes:
        """The codes, the greedily chosen SubNets first."""
        codes: dict[bytes, Codes] = {}
        wanted = self._missing.copy()
        seen = np.where(wanted, 0, self._times)
        for number in np.flatnonzero(wanted).tolist():
            if self._missing[number]:
                code = self._space.canonical_codes(self._around(self._known(number))[None])[0]
                found = self._numbers(code)
                self._missing[found] = 0
                seen[np.unique(found)] += 1
                codes[code.tobytes()] = code
        stands = self._where(wanted)
        for _ in range(ENOUGH_SUBNETS):
            if len(codes) >= ENOUGH_SUBNETS or seen.min() >= self._times:
                break
            number = int(self._rng.choice(np.flatnonzero(seen == seen.min())))
            occurrence, at = stands[number]
            fixed = self._largest(occurrence.columns, at[int(self._rng.integers(len(at)))])
            code = self._space.canonical_codes(self._random(fixed)[None])[0]
            if number not in self._numbers(code):  # derived columns may differ, so that the operator is missing
                code = self._space.canonical_codes(self._random(self._known(number))[None])[0]
            seen[np.unique(self._numbers(code))] += 1
            codes.setdefault(code.tobytes(), code)
        return np.array(list(codes.values()), np.int64).reshape(len(codes), len(self._cardinalities))

    def _where(self, wanted: NDArray[np.int64]) -> dict[int, tuple[_Occurrence, NDArray[np.int64]]]:
        """For each wanted operator, one occurrence and the choices (n, columns) of its variables that yield the operator."""
        found: dict[int, tuple[_Occurrence, NDArray[np.int64]]] = {}
        for occurrence in self._rng.permutation(np.array(self._occurrences, object)):
            for number in np.unique(occurrence.numbers):
                if number >= 0 and wanted[number] and number not in found:
                    found[int(number)] = occurrence, np.argwhere(occurrence.numbers == number)
        return found

    def _random(self, fixed: Mapping[int, int]) -> Codes:
        """A random SubNet with these values of some variables."""
        code: Codes = self._rng.integers(self._cardinalities)
        code[list(fixed)] = list(fixed.values())
        return code

    def _around(self, fixed: Mapping[int, int]) -> Codes:
        """A SubNet with these values of some variables and, by single changes of the others, as many missing operators."""
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

    def _known(self, number: int) -> dict[int, int]:
        """The variables, with values, by which the operator occurs in a SubNet that is known to contain it."""
        code = self._space.canonical_codes(self._space.encode([self._example[number]]))[0]
        extended = self._space.extended(code[None])[0]
        columns = next(
            one.columns for one in self._occurrences if one.numbers[tuple(extended[list(one.columns)])] == number
        )
        return {column: int(code[column]) for column in self._deciders(columns)}

    def _largest(self, columns: Sequence[int], at: NDArray[np.int64]) -> dict[int, int]:
        """Values of variables from columns of extended codes; variables behind derived columns take their largest choice."""
        fixed = {column: int(self._cardinalities[column]) - 1 for column in self._deciders(columns)}
        own = zip(columns, at.tolist(), strict=True)
        return fixed | {column: value for column, value in own if column < len(self._cardinalities)}

    def _deciders(self, columns: Sequence[int]) -> list[int]:
        """The variables among columns of extended codes, and the variables that determine derived columns among them."""
        variables, waiting, found = len(self._cardinalities), list(columns), set[int]()
        while waiting:
            column = waiting.pop()
            if column >= variables:
                waiting += self._space.derived[column - variables].columns
            else:
                found.add(column)
        return sorted(found)

    def _numbers(self, code: Codes) -> NDArray[np.int32]:
        code = self._space.extended(code[None])[0]
        return np.array([occurrence.numbers[tuple(code[list(occurrence.columns)])] for occurrence in self._occurrences])
