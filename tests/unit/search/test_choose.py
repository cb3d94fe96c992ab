"""Choosing one of the SubNets that a search found: budgets, the knee, the cheapest that is accurate enough; names."""

from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from tasks.base.artifacts import read_json, write_json
from tasks.base.errors import UserError
from tasks.base.schemas.placed import ChosenSubNet
from tasks.base.schemas.predictions import Uncertainty
from tasks.base.schemas.stored import Predicted
from tasks.base.schemas.winners import Front, Hypervolume, Winner
from tasks.search.choose import ENOUGH, ROUNDS, WinnerRule, between, cheapest, choose, front, knee, pick, resolve
from tasks.search.terminal import chosen_tables, comparison_table, front_table

SHARE = WinnerRule("accuracy_share", 0.9)


def row(digest: str, latency_ms: float, accuracy: float, budget_ms: float | None = None) -> Winner:
    return Winner(
        digest=digest,
        config={},
        predicted_ms=latency_ms,
        predicted_accuracy=accuracy,
        predicted_score=accuracy,
        macs=1,
        parameters=1,
        budget_ms=latency_ms if budget_ms is None else budget_ms,
    )


def end(winner: Winner) -> Predicted:
    return Predicted.model_validate({name: getattr(winner, name) for name in Predicted.model_fields})


ROWS = [row("aaaa", 1, 0.5), row("bbbb", 2, 0.8), row("cccc", 6, 0.85), row("dddd", 11, 0.9)]
FOUND = Front(
    device="here",
    winners=tuple(ROWS),
    front=tuple(r.digest for r in ROWS),
    fastest=end(ROWS[0]),
    largest=end(ROWS[3]),
    baseline=(),
    hypervolume=Hypervolume(value=0.0, reference_ms=1.0, reference_accuracy=0.0),
    evaluations=0,
    evaluated=0,
    whole_front=None,
    settings={},
)


def with_winners(*rows: Winner) -> Front:
    return FOUND.model_copy(update={"winners": rows})


def printed(table: RenderableType) -> str:
    console = Console(width=200, file=StringIO())
    console.print(table)
    assert isinstance(console.file, StringIO)
    return " ".join(console.file.getvalue().split())


def shown(found: Front) -> str:
    console = Console(width=120, file=StringIO())
    console.print(front_table(found))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_search_is_shown_as_a_row_for_each_budget() -> None:
    lines = shown(FOUND).splitlines()
    assert all(any(f"{one.predicted_ms:g}" in line and one.digest in line for line in lines) for one in ROWS)
    assert "80.0 %" in shown(FOUND)
    assert any("largest" in line and "dddd" in line for line in lines)


def test_budgets_above_the_whole_network_are_remarked() -> None:
    above = with_winners(row("dddd", 11, 0.9, 20), row("dddd", 11, 0.9, 40))
    assert "every budget is above the whole network" in shown(above)
    assert "every budget is above" not in shown(FOUND)


def test_the_network_as_it_was_given_is_a_row() -> None:
    given = FOUND.model_copy(update={"given_accuracy": 0.95, "uncertainty": Uncertainty(samples=100)})
    (line,) = (line for line in shown(given).splitlines() if "as given" in line)
    assert "95.0 ± 2.5 %" in line
    assert "11 ms" in line, "latencies do not depend on weights"
    assert "as given" not in shown(FOUND)


KNOWN = Uncertainty(samples=100, predictor_points=1.2)
FEW = "100 validation samples are too few to tell winners apart"


def test_accuracies_of_winners_have_errors_and_small_splits_are_named() -> None:
    measured = ROWS[2].model_copy(update={"measured_accuracy": 0.84})
    text = printed(front_table(with_winners(*ROWS[:2], measured).model_copy(update={"uncertainty": KNOWN})))
    assert "50.0 ± 1.2 %" in text, "predicted"
    assert "84.0 ± 3.7 %" in text, "measured"
    assert "90.0 ± 3.1 %" in text, "what predictions begin with is measured"
    assert FEW in text
    no_share = FOUND.model_copy(update={"uncertainty": Uncertainty(predictor_points=1.2)})
    assert "80.0 ± 1.2 %" in printed(front_table(no_share))
    assert FEW not in printed(front_table(no_share))
    by_samples = FOUND.model_copy(update={"uncertainty": Uncertainty(samples=100)})
    assert "80.0 ± 4.0 %" in printed(front_table(by_samples)), "an unknown predictor has the split's error"


CHOSEN = {
    **ROWS[1].to_json(),
    "device": "here",
    "rule": {"text": "the best within 2 ms"},
    "base": {"name": "base model", "accuracy": 0.9, "samples": 400},
    "largest_ms": 11.0,
    "uncertainty": KNOWN.to_json(),
    "indistinct": FEW,
    "stopped": "optimal",
    "architecture": {"elsewhere": {}, "sections": []},
}


def test_a_chosen_subnet_is_told_with_errors() -> None:
    text = printed(chosen_tables(CHOSEN))
    assert "80.0 ± 1.2 % predicted base model 90.0 ± 1.5 %" in text
    assert FEW in text
    text = printed(chosen_tables({**CHOSEN, "measured_accuracy": 0.84, "indistinct": None}))
    assert "84.0 ± 3.7 % measured" in text
    assert FEW not in text


def test_compared_subnets_have_errors() -> None:
    sides = [{**one.to_json(), "word": one.digest, "elsewhere": {}} for one in ROWS[:2]]
    pair = {"device": "here", "uncertainty": KNOWN.to_json(), "first": sides[0], "second": sides[1], "layers": []}
    assert "80.0 ± 1.2 % +30.00 points" in printed(comparison_table(cast("Any", pair)))


def test_a_budgets_winner_is_chosen_for_the_budget() -> None:
    assert choose(WinnerRule("budget_ms", 6), FOUND, 1.0).digest == "cccc"


def test_the_front_has_each_winner_once_and_no_dominated_one() -> None:
    found = with_winners(*ROWS[::-1], row("bbbb", 2, 0.8, 3), row("eeee", 7, 0.7))
    assert [r.digest for r in front(found)] == ["aaaa", "bbbb", "cccc", "dddd"]


def test_the_knee_is_farthest_above_the_line_between_the_ends() -> None:
    assert choose(WinnerRule("knee"), FOUND, 1.0).digest == "bbbb"  # 0.75 - 0.1 above; cccc 0.875 - 0.5


def test_where_accuracies_were_measured_they_choose() -> None:
    measured = [
        one.model_copy(update={"measured_accuracy": accuracy})
        for one, accuracy in zip(ROWS, (0.5, 0.6, 0.85, 0.9), strict=True)
    ]
    found = with_winners(*measured)
    assert choose(WinnerRule("knee"), found, 1.0).digest == "cccc"
    assert cheapest(WinnerRule("accuracy_share", 0.8), ROWS, 1.0, "here").digest == "bbbb"
    assert choose(WinnerRule("accuracy_share", 0.8), found, 1.0).digest == "cccc"
    budgets_ms = between(WinnerRule("accuracy_share", 0.8), measured, 1.0)
    assert (min(budgets_ms) > 2, max(budgets_ms)) == (True, 6)


@given(
    st.lists(
        st.tuples(st.floats(0.1, 100), st.floats(0.01, 1)), min_size=4, max_size=12, unique_by=lambda point: point[0]
    ),
    st.floats(0.1, 10),
    st.floats(0.1, 10),
)
def test_the_knee_does_not_depend_on_units(points: list[tuple[float, float]], wide: float, high: float) -> None:
    def chosen(scale_ms: float, scale: float) -> str | None:
        ordered = sorted(points)
        rows = [row(str(i), ms * scale_ms, accuracy * scale) for i, (ms, accuracy) in enumerate(ordered)]
        try:
            return str(knee(rows, "here").digest)
        except UserError:
            return None

    plain, scaled = chosen(1.0, 1.0), chosen(2.0, 4.0)
    assert plain == scaled
    if plain is not None:
        ordered = sorted(points)
        (first_ms, low), (last_ms, top) = ordered[0], ordered[-1]
        above = [(y - low) / (top - low) - (x - first_ms) / (last_ms - first_ms) for x, y in ordered]
        assert above[int(plain)] == max(above) > 0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS[:2], "knee on 'here': the front has 2 SubNets; allowed: 3 or more; take --budget-ms"),
        ([row("a", 1, 0.5), row("b", 2, 0.6), row("c", 3, 0.9)], "no SubNet is above the line"),
        ([row("a", 1, 0.5), row("b", 2, 0.5), row("c", 3, 0.5)], "is no better than the fastest"),
    ],
)
def test_a_front_without_a_knee_is_one_line(rows: list[Winner], message: str) -> None:
    with pytest.raises(UserError, match=message):
        knee(rows, "here")


def test_the_cheapest_is_the_fastest_that_is_accurate_enough() -> None:
    assert cheapest(SHARE, ROWS, 0.9, "here").digest == "cccc"
    assert cheapest(WinnerRule("accuracy_share", 0.5), ROWS, 0.9, "here").digest == "aaaa"


def test_a_share_that_no_subnet_has_names_the_highest_that_one_has() -> None:
    with pytest.raises(UserError, match=r"0.95 of the base accuracy 99.0 % .* on 'here' has; allowed: up to 0.909 "):
        cheapest(WinnerRule("accuracy_share", 0.95), ROWS, 0.99, "here")


@given(st.floats(1, 50), st.floats(1.001, 50))
def test_budgets_close_in_on_the_cheapest(fastest_ms: float, ratio: float) -> None:
    """Accuracy rises at one latency; the rounds find it to a thousandth."""
    edge_ms = fastest_ms * ratio

    def winner(budget_ms: float) -> Winner:
        good = budget_ms >= edge_ms
        return row("good" if good else "bad", edge_ms if good else fastest_ms, 0.9 if good else 0.1, budget_ms)

    rows = [winner(fastest_ms), winner(60 * fastest_ms)]
    for _ in range(ROUNDS):
        budgets_ms = between(SHARE, rows, 1.0)
        if not budgets_ms:
            break
        assert list(budgets_ms) == sorted(budgets_ms)
        rows += [winner(budget_ms) for budget_ms in budgets_ms]
    assert between(SHARE, rows, 1.0) == ()
    slowest_bad_ms = max(r.budget_ms for r in rows if r.digest == "bad")
    assert cheapest(SHARE, rows, 1.0, "here").predicted_ms <= ENOUGH * slowest_bad_ms


def test_nothing_is_narrowed_where_all_or_none_are_good() -> None:
    assert between(WinnerRule("accuracy_share", 0.1), ROWS, 0.9) == ()
    assert between(WinnerRule("accuracy_share", 1.0), ROWS, 0.99) == ()


def test_subnets_are_named_by_budget_name_and_digest() -> None:
    known = [*ROWS, row("abcd1234", 3, 0.7), row("abce1234", 4, 0.7)]
    for word, digest in {"2ms": "bbbb", "6 ms": "cccc", "largest": "dddd", "fastest": "aaaa", "knee": "bbbb",
                         "abcd": "abcd1234", "cccc": "cccc"}.items():  # fmt: skip
        assert resolve(pick(word), FOUND, known, "here").digest == digest
    with pytest.raises(UserError, match="SubNet 'fffff': is none of the 6 SubNets that are known on 'here'; allowed: "):
        resolve(pick("fffff"), FOUND, known, "here")
    with pytest.raises(UserError, match="near: abce1234, abcd1234, "):
        resolve(pick("abcf1234"), FOUND, known, "here")
    with pytest.raises(UserError, match="SubNet 'aaaa': stands for 2 SubNets; allowed: aaaa0, aaaa1"):
        resolve(pick("aaaa"), FOUND, [row("aaaa0", 1, 1), row("aaaa1", 1, 1)], "here")


@pytest.mark.parametrize("word", ["0ms", "nanms", "1e999ms", "abc", "12", "ABCD", "", "abcdefabcdefabcde"])
def test_what_names_no_subnet_is_one_line(word: str) -> None:
    with pytest.raises(UserError, match=f"SubNet '{word}': "):
        pick(word)


def test_a_file_of_a_chosen_subnet_names_it_and_other_files_are_one_line(tmp_path: Path) -> None:
    file, chosen = tmp_path / "fast.json", row("0123456789abcdef", 1, 0.5)
    ChosenSubNet(device="here", rule="the best within 1 ms", subnet=chosen).write(file)
    found = pick(str(file))
    assert (found.kind, found.word) == ("file", str(file))
    assert resolve(found, FOUND, [], "here") == chosen
    write_json(file, {**read_json(file), "plan": {"latency_ms": 1.0}, "coding": "int8"})
    assert pick(str(file)).subnet == chosen, "as version 0.16 wrote it for several devices"
    write_json(file, {"version": 2})
    with pytest.raises(UserError, match=r"chosen SubNet '.*fast.json': has version 2, of a later autotailor"):
        pick(str(file))
    file.write_text("{")
    with pytest.raises(UserError, match=r"is no JSON .*autotailor search --budget-ms MS --to FILE.json"):
        pick(str(file))
