"""A larger budget never has a worse winner than a smaller one, whatever was measured."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tasks.base.schemas.exports import AS_GIVEN, Card, ExportedFile, Latency
from tasks.base.schemas.stored import Predicted
from tasks.base.schemas.winners import Front, Winner
from tasks.evaluation.subnets import Accuracy
from tasks.export.replacing import as_predicted, best_measured, better, whole_network
from tasks.search.refine.known import Known, winners, within

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


def front(**settings: Any) -> Front:
    """What is known of a search, as far as its largest SubNet needs it."""
    named: dict[str, Any] = {"device": "here", "largest": as_predicted(row("whole", 2.0)), "settings": settings}
    return Front.model_construct(**named)


def test_the_network_as_it_was_given_wins_where_no_subnet_is_better() -> None:
    cards = {"fast": card("fast", 1.0, 0.9), "whole": card("whole", 2.0, 0.9), AS_GIVEN: card(AS_GIVEN, 2.0, 0.9)}
    given = (row(AS_GIVEN, 2.0),)
    rows = [row("fast", 1.0), row("whole", 3.0)]
    found = best_measured(rows, cards, others=given)
    assert [one.digest for one in found] == ["fast", AS_GIVEN], "the trained largest SubNet is not better"
    assert found[1].budget_ms == 3.0
    assert [one.digest for one in best_measured(rows, cards, ("whole",), given)] == ["fast", "whole"]
    cards["whole"] = card("whole", 2.0, 0.95)
    assert [one.digest for one in best_measured(rows, cards, others=given)] == ["fast", "whole"]
    failed = {**cards, AS_GIVEN: card(AS_GIVEN, 0.5, 1.0, "failed")}
    assert [one.digest for one in best_measured(rows, failed, others=given)] == ["fast", "whole"]


def test_budgets_above_the_whole_network_have_no_winner_that_is_worse_than_it() -> None:
    rows = [row("a", 1.0), row("b", 3.0), row("b", 4.0)]
    cards = {"a": card("a", 0.9, 0.7), "b": card("b", 1.8, 0.8), "whole": card("whole", 2.0, 0.9)}
    (whole,) = others = whole_network(front(), rows, 2.0)
    assert (whole.digest, whole.budget_ms) == ("whole", 3.0)
    assert better(others, rows, {"a": 0.7, "b": 0.8, "whole": 0.9}) == others
    found = best_measured(rows, cards, others=others)
    assert [(one.digest, one.budget_ms) for one in found] == [("a", 1.0), ("whole", 3.0), ("whole", 4.0)]
    assert better(others, rows, {"a": 0.7, "b": 0.9, "whole": 0.9}) == (), "it is exported only where it is better"


def test_the_whole_network_is_no_further_winner_where_it_may_not_be_one() -> None:
    rows = [row("a", 1.0), row("b", 3.0)]
    assert whole_network(front(), rows, None) == (), "it was not measured"
    assert whole_network(front(), rows, 3.1) == (), "it keeps no budget"
    assert whole_network(front(), [*rows, row("whole", 4.0)], 2.0) == (), "it is one already"
    together = [one.model_copy(update={"budgets_ms": {"here": one.budget_ms}}) for one in rows]
    assert whole_network(front(), together, 2.0) == ()
    assert whole_network(front(limits={"macs": 1}), rows, 2.0)
    assert whole_network(front(limits={"parameters": 0.5}), rows, 2.0) == (), "it is beyond a limit"
    assert whole_network(front(limits={"memory_mib": 9.0}), rows, 2.0) == (), "its memory is not known"
