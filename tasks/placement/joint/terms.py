"""Latency, loss and memory of a SubNet with the devices of its segments, as sums of tables over few variables each.

    coordinator's offset  +  Σ segments: operators on the device  +  Σ cuts with a device change: latency + bytes / bandwidth

The model is that of `solvers.partition.problem`, for plans that change devices at cuts that a single value crosses: one message
per change, the value over the direct link. Bytes follow from the SubNet and the coding. A segment without operators in a SubNet
is on the device of the segment before it, so that no value passes through a device that computes nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from profiling_agents.messages import CODED_BYTES, MIB, ActivationCoding
from solvers.partition import PartitionConditions
from solvers.tables import Table, Values
from tailor_ir import NetworkPiece, OperatorTerm
from tasks.placement.joint.layout import JointSpace
from tasks.placement.partition.tables import FeatureTimes
from tasks.search.terms import FORBIDDEN_MS

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JointTerms:
    """The data of the tables. devices: the coordinator first. conditions: conditions of the devices, in their order.

    codings: the last one is fp32. losses: accuracy losses (segments + 1, codings) by coding the value that crosses a cut.
    private: segments that stay on the coordinator.
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
        """Tables whose sum is the memory of the weights on a device [MiB]."""
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
        """Latencies of a segment's operators on its device: one table for all operators with the same variables."""
        sums: dict[tuple[int, ...], Values] = {}
        for term in piece.terms:
            columns = (*self.space.columns(term.variables), column)
            sums[columns] = sums.get(columns, 0.0) + self._times(term)
        return (Table(columns, values) for columns, values in sums.items())

    def _times(self, term: OperatorTerm) -> Values:
        """Times of an operator under the choices of its variables, on each device (…, D) in the order of the device choices."""
        numbers = term.features.numbers
        found = np.zeros((*numbers.shape, self.space.devices))
        slow_down = self.conditions.slow_down
        for number in np.unique(numbers[numbers >= 0]).tolist():
            feature = term.features.operators[number]
            times = np.asarray([device.operator_ms(feature) for device in self.devices]) * slow_down
            found[numbers == number] = np.where(np.isnan(times), FORBIDDEN_MS, times)[::-1]
        return found

    def _followed(self, piece: NetworkPiece, number: int) -> Iterator[Table]:
        """The table that keeps a segment without operators on the device of the segment before it."""
        if not piece.present.always:
            columns, changes = self._ends(number)
            where = self.space.columns(piece.present.variables)
            absent = ~np.asarray(piece.present.mask)
            values = np.multiply.outer(absent, changes) * FORBIDDEN_MS
            yield Table((*where, *columns), values)

    def _sent(self, cut: int) -> Iterator[Table]:
        """The latency of a device change at a cut: a message, and the bytes of the value that crosses."""
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
        """A matrix from device to device in the order of the device choices, over the columns of `_ends`."""
        flipped = matrix[::-1, ::-1]
        if cut == 0:
            return np.asarray(flipped[self.space.home])
        return np.asarray(flipped[:, self.space.home]) if cut == len(self.losses) - 1 else flipped

    def _ends(self, cut: int) -> tuple[tuple[int, ...], Values]:
        """The columns of the devices on both sides of a cut (the coordinator at an end has none), and 1.0 if these differ."""
        placements, home = self.space.placements, self.space.home
        differ = 1.0 - np.eye(self.space.devices)
        if cut == 0:
            return placements[:1], differ[home]
        if cut == len(placements):
            return (placements[-1:], differ[home]) if self.returns else ((), np.zeros(()))
        return (placements[cut - 1], placements[cut]), differ
