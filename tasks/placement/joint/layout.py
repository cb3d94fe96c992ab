"""Codes of a joint search: the choices of a SubNet, then the device of each segment, then the coding of sent values.

As for every variable, the last choice is the largest one: the coordinator, and fp32. The code with the largest choices is
therefore the largest SubNet, which sends nothing. Derived columns of the space come last.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.tables import Codes, Derived, Table
from tailor_ir import NetworkPieces, Space


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JointSpace:
    """A space with placements. devices: number of devices. codings: number of codings."""

    space: Space
    pieces: NetworkPieces
    devices: int
    codings: int

    @property
    def variables(self) -> int:
        """Number of variables of the space without placements, V."""
        return len(self.space.variables)

    @property
    def placements(self) -> tuple[int, ...]:
        """The column of each segment's device."""
        return tuple(range(self.variables, self.variables + len(self.pieces.pieces)))

    @property
    def coding(self) -> int:
        """The column of the coding."""
        return self.variables + len(self.pieces.pieces)

    @property
    def home(self) -> int:
        """The choice that stands for the coordinator."""
        return self.devices - 1

    @property
    def cardinalities(self) -> NDArray[np.int64]:
        """Number of choices of each variable, (V + segments + 1,)."""
        placements = np.full(len(self.pieces.pieces), self.devices)
        return np.concatenate([self.space.cardinalities, placements, [self.codings]]).astype(np.int64)

    @property
    def derived(self) -> tuple[Derived, ...]:
        """The derived columns of the space, renumbered for joint codes."""
        return tuple(Derived(self.columns(one.columns), one.values) for one in self.space.derived)

    @property
    def groups(self) -> list[list[int]]:
        """All variables in the order of the segments.

        First the coding, then each segment's device with the variables that no earlier segment depends on, last the variables
        that no segment depends on. The order is backwards if the space has derived columns, since later parts decide whether
        an earlier part is needed.
        """
        found, known = [[self.coding]], set[int]()
        backwards = bool(self.space.derived)
        pieces = list(enumerate(self.pieces.pieces))
        for number, piece in reversed(pieces) if backwards else pieces:
            crossing = self.pieces.crossing[number + backwards]
            of_bytes = (table.columns for table in (*crossing.floats, *crossing.others))
            scopes = (*of_bytes, piece.present.variables, *(term.variables for term in piece.terms))
            new = sorted({one for columns in scopes for one in self._deciders(columns)} - known)
            known.update(new)
            found.append([self.placements[number], *new])
        return [*found, sorted(set(range(self.variables)) - known)]

    def _deciders(self, columns: Iterable[int]) -> set[int]:
        """The variables among columns of the space, and the variables that determine derived columns among them."""
        found = set[int]()
        for column in columns:
            own = (
                [column]
                if column < self.variables
                else self._deciders(self.space.derived[column - self.variables].columns)
            )
            found.update(own)
        return found

    def columns(self, columns: Sequence[int]) -> tuple[int, ...]:
        """Columns of the space's extended codes, renumbered for joint codes."""
        shift = len(self.pieces.pieces) + 1
        return tuple(column if column < self.variables else column + shift for column in columns)

    def table(self, table: Table) -> Table:
        """A table of the space, with its columns renumbered for joint codes."""
        return Table(self.columns(table.columns), table.values)

    def canonical_codes(self, codes: Codes) -> Codes:
        """Equal rows for equal SubNets and plans: a segment without operators is on the device of the segment before it."""
        found = np.array(codes, np.int64)
        found[:, : self.variables] = self.space.canonical_codes(found[:, : self.variables])
        extended = self.space.extended(found[:, : self.variables])
        before = np.full(len(found), self.home)
        sends = np.zeros(len(found), bool)
        for column, piece in zip(self.placements, self.pieces.pieces, strict=True):
            before = found[:, column] = np.where(piece.present.among(extended), found[:, column], before)
            sends |= before != self.home
        found[~sends, self.coding] = self.codings - 1
        return found

    def random_codes(self, n: int, rng: np.random.Generator) -> Codes:
        """Canonical rows (n, V + segments + 1), each variable drawn uniformly from its choices."""
        return self.canonical_codes(rng.integers(0, self.cardinalities, size=(n, len(self.cardinalities))))

    def placed(self, code: Codes) -> dict[int, int]:
        """Position of an operator in `PrePartition.operators` -> its device under a code; the coordinator is device 0."""
        devices = self.home - code[list(self.placements)]
        return {at: int(devices[piece]) for at, piece in self.pieces.of_operators().items()}
