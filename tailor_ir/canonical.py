"""Canonical choices of expansions as one array, so that a matrix of codes is looked up at once."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

if TYPE_CHECKING:
    from tailor_ir.space import Expansion


CHUNK = 512  # codes at a time, whose columns fit in a cache


class CanonicalChoices(NamedTuple):
    """For m expansions: `choices` at `starts` (m, 1) + variable + what their depth and width add.

    hubs: pairs of variables (m,) and what each of their choices adds (m, 1), 0 where an expansion has none.
    """

    variables: np.ndarray
    hubs: tuple[tuple[np.ndarray, np.ndarray], ...]
    starts: np.ndarray
    choices: np.ndarray

    @classmethod
    def of(cls, expansions: Sequence["Expansion"], skips: Callable[["Expansion"], Sequence[bool]]) -> Self:
        """skips: for each choice of an expansion's depth whether its block is skipped; [False] where it has none.

        Skipped blocks have their default, the last choice; of choices with equal sizes the largest is canonical.
        """
        tables = [_table(expansion, skips(expansion)) for expansion in expansions]
        counts = np.array([table.shape for table in tables])  # widths, depths, choices
        depths = _hubs([e.depth for e in expansions], counts[:, 2])
        widths = _hubs([e.reference.variable for e in expansions], counts[:, 1] * counts[:, 2])
        return cls(
            variables=np.array([e.variable for e in expansions]),
            hubs=tuple(hub for hub in (depths, widths) if hub[1].any()),
            starts=np.cumsum([0, *counts.prod(axis=1)], dtype=np.int32)[:-1, None],
            choices=np.concatenate([table.ravel() for table in tables]).astype(np.int32),
        )

    def apply(self, columns: np.ndarray) -> None:
        """Make these variables of transposed codes (V, n) canonical, in place."""
        at = columns.take(self.variables, axis=0)
        at += self.starts
        for variables, adds in self.hubs:
            at += columns.take(variables, axis=0) * adds
        columns[self.variables] = self.choices.take(at, mode="clip")  # nothing is beyond the ends; this looks up faster


def canonical(codes: np.ndarray, steps: Sequence[CanonicalChoices]) -> np.ndarray:
    """Codes (n, V) after each of the steps, as a new array."""
    found = np.empty(codes.shape, np.int64)
    for first in range(0, len(codes), CHUNK):
        columns = np.ascontiguousarray(codes[first : first + CHUNK].T, np.int32)
        for choices in steps:
            choices.apply(columns)
        found[first : first + CHUNK] = columns.T
    return found


def _hubs(variables: Sequence[int | None], adds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    known = np.array([variable is not None for variable in variables])
    return np.array([variable or 0 for variable in variables]), (known * adds).astype(np.int32)[:, None]


def in_groups(expansions: Sequence["Expansion"]) -> list[list["Expansion"]]:
    """Expansions in order; none reads or writes what another one of its group, before it, writes."""
    groups: list[list[Expansion]] = []
    written: set[int] = set()
    for expansion in expansions:
        if not groups or written & {expansion.variable, expansion.reference.variable, expansion.depth}:
            groups.append([])
            written = set()
        groups[-1].append(expansion)
        written.add(expansion.variable)
    return groups


def _table(expansion: "Expansion", skips: Sequence[bool]) -> np.ndarray:
    """The canonical choice by width, depth and choice."""
    largest = []
    for width in range(len(expansion.reference.sizes)):
        sizes = list(zip(*(one[width] for one in expansion.sizes), strict=True))
        last = {size: choice for choice, size in enumerate(sizes)}
        largest.append([last[size] for size in sizes])
    table = np.repeat(np.asarray(largest)[:, None], len(skips), axis=1)
    table[:, np.asarray(skips)] = table.shape[2] - 1
    return table
