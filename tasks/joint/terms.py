"""Latency, loss and memory of a SubNet with the devices of its pieces, as sums of tables over few variables each.

    home's own time  +  Σ pieces: operators on the device  +  Σ cuts where the device changes: latency + bytes / bandwidth

The model is that of `solvers.partition.problem`, for plans that change devices where one value crosses: a message for each
change, a value over the direct link. Bytes follow from the SubNet and the coding. A piece without an operator in a SubNet is
where the piece before it is, so that nothing goes through a device that computes nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from profiling_agents.messages import CODED_BYTES, MIB, ActivationCoding
from solvers.partition import PartitionConditions
from solvers.tables import Table, Values
from tailor_ir import NetworkPiece, OperatorTerm
from tasks.joint.layout import JointSpace
from tasks.partition.tables import FeatureTimes
from tasks.search.terms import FORBIDDEN_MS

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JointTerms:
    """What the tables are made from. devices: home first. conditions: of the devices, in their order.

    codings: the last one is fp32. losses: (pieces + 1, codings) of accuracy by coding what crosses a cut. private: pieces that
    stay at home.
    """

    space: JointSpace
    devices: Sequence[FeatureTimes]
    conditions: PartitionConditions
    codings: tuple[ActivationCoding, ...]
    losses: NDArray[np.float64]
    private: frozenset[int] = frozenset()
    returns: bool = True

    def latency(self) -> list[Table]:
        """Tables whose sum is the latency [ms] of any code."""
        found = [Table.constant(self.devices[0].offset_ms)]
        for number, piece in enumerate(self.space.pieces.pieces):
            column = self.space.placements[number]
            found += self._computed(piece, column)
            found += self._followed(piece, number)
            if number in self.private:
                found.append(
                    Table((column,), np.where(np.arange(self.space.devices) < self.space.home, FORBIDDEN_MS, 0.0))
                )
        for cut in range(len(self.losses)):
            found += self._sent(cut)
        return found

    def loss(self) -> list[Table]:
        """Tables whose sum is the accuracy that codings lose."""
        found = []
        for cut, losses in enumerate(self.losses):
            if losses.any():
                columns, changes = self._ends(cut)
                found.append(Table((*columns, self.space.coding), changes[..., None] * losses))
        return found

    def memory(self, device: int) -> list[Table]:
        """Tables whose sum is what the weights of a device take [MiB]."""
        there = np.arange(self.space.devices) == self.space.home - device
        found = []
        for column, piece in zip(self.space.placements, self.space.pieces.pieces, strict=True):
            for term in piece.terms:
                parameters = np.asarray([*(one.parameters for one in term.features.operators), 0.0])
                mib = parameters[term.features.numbers] * FLOAT_BYTES / MIB
                if mib.any():
                    found.append(Table((*self.space.columns(term.variables), column), mib[..., None] * there))
        return found

    def _computed(self, piece: NetworkPiece, column: int) -> Iterator[Table]:
        """Operators of a piece on its device; one table for all of them that depend on the same variables."""
        sums: dict[tuple[int, ...], Values] = {}
        for term in piece.terms:
            columns = (*self.space.columns(term.variables), column)
            sums[columns] = sums.get(columns, 0.0) + self._times(term)
        return (Table(columns, values) for columns, values in sums.items())

    def _times(self, term: OperatorTerm) -> Values:
        """Times of an operator under the choices of its variables, on each device (…, D) in the order of choices."""
        numbers = term.features.numbers
        found = np.zeros((*numbers.shape, self.space.devices))
        slow_down = self.conditions.slow_down
        for number in np.unique(numbers[numbers >= 0]).tolist():
            feature = term.features.operators[number]
            times = np.asarray([device.operator_ms(feature) for device in self.devices]) * slow_down
            found[numbers == number] = np.where(np.isnan(times), FORBIDDEN_MS, times)[::-1]
        return found

    def _followed(self, piece: NetworkPiece, number: int) -> Iterator[Table]:
        """A piece without operators is where the piece before it is."""
        if not piece.present.always:
            columns, changes = self._ends(number)
            where = self.space.columns(piece.present.variables)
            absent = ~np.asarray(piece.present.mask)
            values = np.multiply.outer(absent, changes) * FORBIDDEN_MS
            yield Table((*where, *columns), values)

    def _sent(self, cut: int) -> Iterator[Table]:
        """What a change of device at a cut takes: a message, and the bytes of the value that crosses."""
        columns, _ = self._ends(cut)
        if not columns:
            return
        message_ms = self._between(self.conditions.message_ms, cut)
        ms_per_byte = self._between(self.conditions.ms_per_byte, cut)
        linked = np.isfinite(message_ms)
        yield Table(columns, np.where(linked, message_ms, FORBIDDEN_MS))
        ms_per_byte = np.where(linked, ms_per_byte, 0.0)
        shares = np.asarray([CODED_BYTES[coding] for coding in self.codings]) / CODED_BYTES["fp32"]
        crossing = self.space.pieces.crossing[cut]
        for bytes_ in crossing.floats:
            values = np.multiply.outer(bytes_.values, np.multiply.outer(ms_per_byte, shares))
            yield Table((*self.space.columns(bytes_.columns), *columns, self.space.coding), values)
        for bytes_ in crossing.others:
            yield Table((*self.space.columns(bytes_.columns), *columns), np.multiply.outer(bytes_.values, ms_per_byte))

    def _between(self, matrix: NDArray[np.float64], cut: int) -> Values:
        """A matrix from device to device in the order of choices, over the columns of `_ends`."""
        flipped = matrix[::-1, ::-1]
        if cut == 0:
            return np.asarray(flipped[self.space.home])
        return np.asarray(flipped[:, self.space.home]) if cut == len(self.losses) - 1 else flipped

    def _ends(self, cut: int) -> tuple[tuple[int, ...], Values]:
        """The columns of the devices on both sides of a cut, of which home has none, and where they differ."""
        placements, home = self.space.placements, self.space.home
        differ = 1.0 - np.eye(self.space.devices)
        if cut == 0:
            return placements[:1], differ[home]
        if cut == len(placements):
            return (placements[-1:], differ[home]) if self.returns else ((), np.zeros(()))
        return (placements[cut - 1], placements[cut]), differ
