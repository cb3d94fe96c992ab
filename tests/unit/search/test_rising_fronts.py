"""A larger budget never has a worse winner than a smaller one, whatever was measured."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tasks.evaluation.subnets import Accuracy
from tasks.export.replacing import best_measured
from tasks.refine.known import Known, winners, within
from tasks.schemas.exports import Card, ExportedFile, Latency
from tasks.schemas.front import Winner
from tasks.schemas.subnets import Predicted

MS = st.floats(0.5, 2.0)
FACTOR = st.floats(0.97, 1.06)
MARGIN = 0.01


@st.composite
def candidates(draw: st.DrawFn) -> tuple[list[Known], list[tuple[float, ...]]]:
    """Candidates on one device with latencies that are near to some budget, and rising budgets."""
    budgets_ms = sorted({round(draw(MS), 3) for _ in range(4)})
    known = []
    for number in range(draw(st.integers(1, 6))):
        ms = draw(st.sampled_from(budgets_ms)) * draw(FACTOR)
        accuracy = Accuracy(draw(st.integers(0, 4)), 4, draw(st.floats(0.1, 2.0)))
        known.append(Known(str(number), (ms,), (ms * draw(FACTOR),), accuracy))
    return known, [(ms,) for ms in budgets_ms]


@given(candidates())
def test_refined_winners_rise_with_their_budgets(case: tuple[list[Known], list[tuple[float, ...]]]) -> None:
    known, budgets_ms = case
    chosen = list(zip(budgets_ms, winners(known, budgets_ms, MARGIN), strict=True))
    for ms, one in chosen:
        assert within(one.ms, ms) or not any(within(other.ms, ms) for other in known)
        for smaller_ms, other in chosen:
            if smaller_ms <= ms and within(other.ms, smaller_ms):
                assert other.rank(ms) <= one.rank(ms)


def card(digest: str, ms: float | None, accuracy: float, state: str = "ok") -> Card:
    """What is known of an exported SubNet, as far as a choice among the measured needs it."""
    latency = Latency.model_construct(p50_ms=ms)  # type: ignore[call-arg]
    files = {"onnx": ExportedFile.model_validate({"state": state})}
    fields: dict[str, Any] = {"digest": digest, "latency": latency, "accuracy": {"validation": accuracy, "test": 0.0}}
    return Card.model_construct(**fields, files=files)


def row(digest: str, budget_ms: float, **more: Any) -> Winner:
    """A winner that the search has found."""
    fields = {"predicted_ms": budget_ms, "predicted_accuracy": 0.5, "predicted_score": 0.5, "macs": 1, "parameters": 1}
    named = Predicted.model_validate({"digest": digest, "config": {}, **fields})
    return Winner.model_validate({"budget_ms": budget_ms, **named.to_json(), **more})


def chosen(rows: list[Winner], cards: Mapping[str, Card], kept: tuple[str, ...] = ()) -> list[str]:
    """The digests of the winners; each row keeps its budget."""
    found = best_measured(rows, cards, kept)
    assert [one.budget_ms for one in found] == [one.budget_ms for one in rows]
    return [one.digest for one in found]


@given(st.lists(st.tuples(MS, st.sampled_from([None, 0.9, 0.99, 1.2]), st.integers(0, 4)), min_size=1, max_size=6))
def test_an_exported_winner_is_the_best_measured_file_that_keeps_its_budget(
    found: list[tuple[float, float | None, int]],
) -> None:
    found = sorted(found, key=lambda one: one[0])
    rows = [row(str(number), budget_ms) for number, (budget_ms, _, _) in enumerate(found)]
    cards = {
        str(number): card(str(number), factor and factor * budget_ms, correct / 4)
        for number, (budget_ms, factor, correct) in enumerate(found)
    }
    for asked, digest in zip(rows, chosen(rows, cards), strict=True):
        kept = [one.accuracy["validation"] for one in cards.values() if (one.latency.p50_ms or 9.0) <= asked.budget_ms]
        if kept:
            assert cards[digest].accuracy["validation"] == max(kept)
            assert (cards[digest].latency.p50_ms or 9.0) <= asked.budget_ms
        else:
            assert digest == asked.digest, "nothing keeps it: the winner stays, and is told"


def test_a_smaller_subnet_takes_the_place_of_worse_winners_of_larger_budgets() -> None:
    rows = [row("a", 1.404), row("b", 1.505), row("c", 1.612)]
    cards = {"a": card("a", 1.4, 0.98), "b": card("b", 1.5, 0.87), "c": card("c", 1.6, 0.87)}
    assert chosen(rows, cards) == ["a", "a", "a"]
    assert chosen(rows, cards, kept=("b",)) == ["a", "b", "a"], "a SubNet that has adapted stays"
    broken = {**cards, "a": card("a", 1.4, 0.98, state="failed")}
    assert chosen(rows, broken) == ["a", "b", "c"], "without files it serves no other budget"
    together = [one.model_copy(update={"budgets_ms": {"here": one.budget_ms}}) for one in rows]
    assert chosen(together, cards) == ["a", "b", "c"], "one for several devices is the same on each"
