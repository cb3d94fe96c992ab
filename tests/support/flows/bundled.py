"""The SubNets that a run's bundle may have: winners, and those that are beaten for every budget that they keep."""

from pathlib import Path

from adaptive_runtime.bundle.bundles import OpenBundle
from tasks.base.schemas.exports import EXPORTS_FILE, Card, Exports


def check_subnets(output: Path, device: str, bundle: OpenBundle) -> set[str]:
    """Digests of a device's winners. The bundle has these, and SubNets that lost their budgets when their files were measured.

    Such SubNets stay for states of the device in which a winner is too slow.
    """
    (file,) = output.glob(f"stages/export/{device}/*/{EXPORTS_FILE}")
    exports = Exports.read(file)
    cards = {card.digest: card for card in exports.subnets}
    winners = {row.digest for row in exports.winners}
    assert winners <= cards.keys() == bundle.manifest.by_digest.keys()
    for digest in cards.keys() - winners:
        kept = [row for row in exports.winners if (cards[digest].latency.p50_ms or 0) <= row.budget_ms]
        assert all(_accuracy(cards[digest]) <= _accuracy(cards[row.digest]) for row in kept), digest
    return winners


def _accuracy(card: Card) -> float:
    """On the split that winners are chosen by."""
    return next(iter(card.accuracy.values()))
