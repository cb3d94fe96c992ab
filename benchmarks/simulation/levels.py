"""Rows over all levels: SubNet, exit, engine, and the devices that run it.

Legend: V rows, K placed rows, F factors of a plane.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.offload.split import COORDINATOR, PlannedPlacement
from adaptive_runtime.policy import VariantTable

Level = Literal["subnet", "exit", "engine", "placement"]


class RowLevels(NamedTuple):
    """What a row is at each level.

    exit: empty: the whole SubNet. engine: the runtime and its precision. placement: a name of its plans.
    """

    subnet: str
    exit: str = ""
    engine: str = ""
    placement: str = COORDINATOR


@dataclass(frozen=True, slots=True)
class LevelRows:
    """A table, what each of its rows is (V,), and the plans of the rows that other devices take part in.

    Of a row's plans the fastest is followed; they count bytes as they cross. Each placed row has a row on the coordinator
    with the same SubNet, exit and engine, which stands in for it. AdaptiveError: it has none.
    """

    table: VariantTable
    levels: tuple[RowLevels, ...]
    placed: Mapping[int, tuple[PlannedPlacement, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.levels) != len(self.table):
            raise AdaptiveError("rows over levels", f"{len(self.levels)} for {len(self.table)} variants")
        for row, levels in enumerate(self.levels):
            if (levels.placement == COORDINATOR) == bool(self.placed.get(row)):
                got = f"row '{self.table.names[row]}' has placement '{levels.placement}'"
                allowed = f"'{COORDINATOR}' without a plan, another name with one"
                raise AdaptiveError("rows over levels", got, allowed=allowed)
            if levels._replace(placement=COORDINATOR) not in self.levels:
                got = f"row '{self.table.names[row]}' has no row on the coordinator"
                raise AdaptiveError("rows over levels", got, next_step="add one with the same SubNet, exit and engine")

    def coordinator_of(self, row: int) -> int:
        """The row on the coordinator with the same SubNet, exit and engine."""
        return self.levels.index(self.levels[row]._replace(placement=COORDINATOR))

    @property
    def full(self) -> int:
        """The most accurate row of the first engine that is whole and on the coordinator: what runs without adaptation."""
        engine = self.levels[0].engine
        rows = [row for row, one in enumerate(self.levels) if one[1:] == ("", engine, COORDINATOR)]
        if not rows:
            raise AdaptiveError(
                "rows over levels", "no whole SubNet on the coordinator", next_step="add one in the first engine"
            )
        return max(rows, key=self.table.accuracy.__getitem__)

    def only(self, *levels: Level) -> frozenset[int]:
        """The rows that differ from `full` at some levels alone."""
        full = self.levels[self.full]._asdict()
        others = full.keys() - set(levels)
        return frozenset(
            row for row, one in enumerate(self.levels) if all(getattr(one, name) == full[name] for name in others)
        )
