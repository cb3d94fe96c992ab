"""Which alternative wins where: single blocks replaced in a network, and what winners replace."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from benchmarks.space_fronts import ALTERNATIVES, BOTH
from benchmarks.tables import show
from tailor_ir import Config

KINDS = ("merged", "pruned", "low_rank", "separable")
ORIGINAL = "original"
LOST_POINTS = 0.5
"""That the best alternative of a block may lose."""


class Single(NamedTuple):
    """One block replaced, everything else the original. saved: share of the original's latency; lost_points: of accuracy."""

    variable: str
    choice: str
    saved: float
    lost_points: float


class Duel(NamedTuple):
    """Two kinds on the blocks that have both.

    faster: blocks on which the fastest of the first kind is faster than the fastest of the second. beats: on which each
    alternative of the second kind meets a faster one of the first that loses no more; `beaten`: the same the other way round.
    """

    first: str
    second: str
    blocks: int
    faster: int
    beats: int
    beaten: int


def kind_of(choice: str) -> str:
    """The kind of an alternative, as `pruned` of `pruned_0.25`."""
    return next(kind for kind in KINDS if choice == kind or choice.startswith(f"{kind}_"))


def stage_of(variable: str) -> str:
    """`stage.2` of `stage.2.block.1.block`; a merged block is of the stage in which it begins."""
    return ".".join(variable.split(".")[:2])


def by_block(singles: Sequence[Single]) -> dict[str, list[Single]]:
    """The alternatives of each block."""
    found: dict[str, list[Single]] = {}
    for one in singles:
        found.setdefault(one.variable, []).append(one)
    return found


def best_trade(singles: Sequence[Single], lost_points: float = LOST_POINTS) -> Single | None:
    """Of a block's alternatives the one that saves most latency and loses at most so many points; None: none saves any."""
    allowed = [one for one in singles if one.lost_points <= lost_points and one.saved > 0]
    return max(allowed, key=lambda one: (one.saved, -one.lost_points), default=None)


def best_trades(singles: Sequence[Single]) -> dict[str, dict[str, int]]:
    """By stage: on how many blocks each kind (or `original`) is the best trade."""
    found: dict[str, dict[str, int]] = {}
    for variable, own in by_block(singles).items():
        best = best_trade(own)
        counts = found.setdefault(stage_of(variable), {})
        name = ORIGINAL if best is None else kind_of(best.choice)
        counts[name] = counts.get(name, 0) + 1
    return found


def duels(singles: Sequence[Single]) -> list[Duel]:
    """Each pair of kinds that some block has both of."""
    blocks = [_by_kind(own) for own in by_block(singles).values()]
    rows = []
    for first, second in combinations(KINDS, 2):
        both = [(own[first], own[second]) for own in blocks if first in own and second in own]
        if both:
            faster = sum(max(one.saved for one in ours) > max(one.saved for one in theirs) for ours, theirs in both)
            beats, beaten = (sum(_beats(*pair) for pair in both), sum(_beats(theirs, ours) for ours, theirs in both))
            rows.append(Duel(first, second, len(both), faster, beats, beaten))
    return rows


def _by_kind(singles: Sequence[Single]) -> dict[str, list[Single]]:
    found: dict[str, list[Single]] = {}
    for one in singles:
        found.setdefault(kind_of(one.choice), []).append(one)
    return found


def _beats(ours: Sequence[Single], theirs: Sequence[Single]) -> bool:
    return all(any(own.saved > one.saved and own.lost_points <= one.lost_points for own in ours) for one in theirs)


def occurrences(configs: Sequence[Config], defaults: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """By stage: how many blocks of a SubNet each kind stands in on average. defaults: of all block variables."""
    found: dict[str, dict[str, float]] = {stage_of(name): {} for name in defaults}
    for config in configs:
        for name, default in defaults.items():
            choice = str(config.get(name, default))  # a block under a merged one has no choice
            if choice != default:
                counts, kind = found[stage_of(name)], kind_of(choice)
                counts[kind] = counts.get(kind, 0.0) + 1 / len(configs)
    return found


def show_replacements(devices: Sequence[dict[str, Any]], *, markdown: bool) -> None:
    """Which alternative wins where."""
    names = sorted({one["choice"] for device in devices for one in device["singles"]})
    blocks = []
    for device in devices:
        for variable in dict.fromkeys(one["variable"] for one in device["singles"]):
            own = {one["choice"]: one for one in device["singles"] if one["variable"] == variable}
            blocks.append(
                (device["device"], variable.removesuffix(".block"), *(_saved(own.get(name)) for name in names))
            )
    print("latency saved, % / points lost")
    show(("device", "block", *names), blocks, markdown=markdown)
    stages: list[tuple[str, ...]] = []
    for device in devices:
        for stage, counts in device["best_trades"].items():
            shown = [_shown(device["fronts"][space]["kinds"].get(stage, {})) for space in (ALTERNATIVES, BOTH)]
            trades = ", ".join(f"{name} {counts[name]}" for name in (*KINDS, ORIGINAL) if name in counts)
            stages.append((device["device"], stage, trades, *shown))
    heads = ("device", "stage", "best trade, blocks", "blocks of a winner, alternatives", "blocks of a winner, both")
    show(heads, stages, markdown=markdown)
    pairs = [
        (
            device["device"],
            f"{one['first']} against {one['second']}",
            *(str(one[key]) for key in ("blocks", "faster", "beats", "beaten")),
        )
        for device in devices
        for one in device["duels"]
    ]
    show(("device", "kinds", "blocks", "first is faster", "first beats", "second beats"), pairs, markdown=markdown)


def _saved(one: Mapping[str, Any] | None) -> str:
    return "-" if one is None else f"{100 * one['saved']:.1f} / {one['lost_points']:.1f}"


def _shown(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{kind} {counts[kind]:.2f}" for kind in KINDS if kind in counts) or "-"
