"""The problem of a joint search (`tasks.search`) over SubNet, devices of segments, and coding of sent values.

One code has the choices of a SubNet, then the device of each segment, then the coding. As for every variable, the last
choice is the largest one: the coordinator, and fp32. The code with the largest choices is therefore the largest SubNet,
which sends nothing. Derived columns of the space come last.

Latency, loss and memory are sums of tables over few variables each:

    coordinator's offset  +  Σ segments: operators on the device
        +  Σ cuts with a device change: latency + bytes / bandwidth

The model is from `solvers.partition.problem`, for plans that change devices at cuts that a single value crosses: one
message per change, the value over the direct link. Bytes follow from the SubNet and the coding. A segment without
operators in a SubNet is on the device of the segment before it, so that no value passes through a device that computes
nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from profiling_agents.messages import CODED_BYTES, MIB, ActivationCoding
from solvers.chain import Chain
from solvers.exact import optimum
from solvers.partition import PartitionConditions
from solvers.tables import Codes, Derived, Table, Values, with_derived
from tailor_ir import NetworkPiece, NetworkPieces, OperatorTerm, Space
from tasks.placement.partition.planning import FeatureTimes
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.sums import Sums
from tasks.search.feasibility import LATENCY, Cost
from tasks.search.genetic import BestCode
from tasks.search.methods import Exact
from tasks.search.problem import FORBIDDEN_MS, Additive, Problem, chain_of_tables, gain_tables
from tasks.search.settings import Settings


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


TIE = 1e-9
"""A plan that sends values is only taken if it is faster than the coordinator alone by more than this share."""

JointLimits = dict[str, tuple[list[Table], float]]
"""Setting -> tables whose sum is bounded, and the bound."""


@dataclass(frozen=True)
class JointAccuracy:
    """The accuracy of a SubNet minus the loss by coding."""

    space: JointSpace
    accuracy: AccuracyPredictor
    losses: Sums

    def predict(self, codes: Codes) -> Values:
        """Accuracy (n,), a fraction, of canonical codes (n, V + segments + 1)."""
        return np.clip(self.accuracy.predict(codes[:, : self.space.variables]) - self.losses.predict(codes), 0.0, 1.0)

    def score(self, codes: Codes) -> Values:
        """The score (n,), which is maximised."""
        return self.accuracy.score(codes[:, : self.space.variables]) - self.losses.predict(codes)

    @cached_property
    def tables(self) -> list[Table]:
        """The terms that are added to the largest SubNet's score."""
        own = [self.space.table(table) for table in gain_tables(self.space.space, self.accuracy)]
        return [*own, *(table.scaled(-1.0) for table in self.losses.tables)]


class JointSearch:
    """Finds the best code within budgets over all SubNets, devices and codings. limits: bounds besides the latency's."""

    def __init__(
        self,
        terms: JointTerms,
        accuracy: AccuracyPredictor,
        settings: Settings,
        limits: JointLimits | None = None,
    ) -> None:
        self.terms, self.space = terms, terms.space
        name = "+".join(device.name for device in terms.devices)
        self.latency = self._sums(terms.latency())
        others = {setting: (self._sums(tables), most) for setting, (tables, most) in (limits or {}).items()}
        self.costs = [
            Cost(LATENCY, name, self.latency),
            *(Cost(setting, name, model, most) for setting, (model, most) in others.items()),
        ]
        self.accuracy = JointAccuracy(self.space, accuracy, self._sums(terms.loss()))
        self.sums = (self.latency, *(model for model, _ in others.values()))
        self.problem = Problem(self.space, self.latency, self.accuracy, self.sums[1:])
        rows = [model.tables for model in self.sums]
        chain = chain_of_tables(
            self.space.cardinalities.tolist(), self.accuracy.tables, rows, self.space.derived, self.space.groups
        )
        bounds = np.array([cost.limit for cost in self.costs])
        self.method = Exact(self.problem, chain, settings, [Additive(rows=(row,)) for row in rows], bounds)

    def winner(self, budgets: Values) -> BestCode:
        """The most accurate code within budgets (K,), with the fastest plan of its SubNet that loses no more accuracy.

        If offloading does not pay, nothing is sent.
        """
        found = self.method.winner(budgets)
        return replace(found, code=self._least(found.code, budgets))

    def quickest(self, budgets: Values | None = None) -> Codes:
        """The fastest code; see `tasks.search.methods.Method`."""
        return self.method.quickest(budgets)

    def best(self) -> Codes:
        """The most accurate code, the fastest among equals; see `tasks.search.methods.Method`."""
        return self.method.best()

    def at_home(self, code: Codes) -> Codes:
        """The same SubNet on the coordinator alone."""
        found = code.copy()
        found[self.space.variables :] = self.space.cardinalities[self.space.variables :] - 1
        return found

    def _sums(self, tables: list[Table]) -> Sums:
        return Sums(self.space.cardinalities.tolist(), tables, self.space.derived)

    def _least(self, code: Codes, budgets: Values) -> Codes:
        """The SubNet of a code with the fastest devices and coding that lose no more accuracy."""
        lost = [*self.accuracy.losses.tables, Table.constant(1.0)]  # no loss is a budget, too
        costs = [lost, *(model.tables for model in self.sums[1:])]
        bounds = np.append(1.0 + self.accuracy.losses.predict(code[None])[0], budgets[1:])
        gain = [table.scaled(-1.0) for table in self._placing(code, self.latency.tables)]
        choices = self.space.cardinalities[self.space.variables :].tolist()
        chain = Chain(choices, gain, [self._placing(code, tables) for tables in costs])
        kept = np.isfinite(bounds)
        found = optimum(chain.view(np.flatnonzero(kept).tolist()), bounds[kept], tolerance=0.0)
        placed = code.copy()
        placed[self.space.variables :] = found.code
        pair = self.space.canonical_codes(np.stack([placed, self.at_home(code)]))
        placed_ms, home_ms = self.latency.predict(pair).tolist()
        as_good = home_ms <= placed_ms * (1 + TIE) and self.problem.within(pair[1:], budgets)[0]
        best: Codes = pair[1] if as_good else pair[0]
        return best

    def _placing(self, code: Codes, tables: Iterable[Table]) -> list[Table]:
        """Tables of the SubNet of a code, only over the devices of its segments and the coding."""
        variables, last = self.space.variables, self.space.coding
        known = with_derived(code[None], self.space.derived)[0].tolist()
        of_subnet = {column: value for column, value in enumerate(known) if not variables <= column <= last}
        left = (table.under(of_subnet) for table in tables)
        return [Table(tuple(column - variables for column in columns), values) for columns, values in left]
