"""The exits of a chain: all that a SubNet passes, or, with thresholds, those whose heads must run."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from adaptive_runtime.exits import Thresholds
from tailor_ir import Config, SuperNet
from tasks.base.schemas.exports import Card, ExportedSegment
from tasks.exits.policies import SubnetPolicy

THRESHOLDS_FILE = "thresholds.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPlan:
    """A SubNet up to the last exit of its chain, and the chain's exits in order.

    thresholds: for these exits; None: unknown. shares: of the test images that leave at each exit.
    """

    config: Config
    exits: tuple[str, ...]
    thresholds: Thresholds | None = None
    shares: tuple[float, ...] = ()

    @property
    def thresholds_file(self) -> dict[str, bytes]:
        """The file with thresholds, content by name; {} without thresholds."""
        return {} if self.thresholds is None else {THRESHOLDS_FILE: self.thresholds.to_json().encode()}

    def expected_ms(self, segments: Sequence[ExportedSegment]) -> float | None:
        """Mean latency of samples that leave as the test images do; None without thresholds or measured segments."""
        known = [segment.latency_ms for segment in segments if segment.latency_ms is not None]
        if self.thresholds is None or len(known) < len(segments):
            return None
        return sum(share * until_ms for share, until_ms in zip(self.shares, accumulate(known), strict=True))


def plan_of(net: SuperNet, card: Card, policy: SubnetPolicy | None) -> ChainPlan:
    """The chain of a SubNet; policy: source of its thresholds, if it has any."""
    if policy is None or policy.thresholds is None:
        return ChainPlan(config=card.config, exits=net.exits(card.config))
    thresholds = Thresholds.model_validate(policy.thresholds)
    rows = [policy.exits[place] for place in thresholds.needed]
    exits = tuple(row.exit for row in rows)
    return ChainPlan(
        config=net.space.canonical({**card.config, "exit": exits[-1]}),
        exits=exits,
        thresholds=thresholds.at(thresholds.needed),
        shares=tuple(row.share or 0.0 for row in rows),
    )
