"""Choosing SubNets of a finished run on the command line, and two of them side by side."""

import json
from typing import Any

import pytest

from flows.cli import main
from tests.flows.conftest import Command
from tests.flows.tiny import TINY

Report = dict[str, Any]


@pytest.fixture(scope="module")
def device(finished: Report) -> Report:
    found: Report = finished["devices"][0]
    return found


def refused(command: Command, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a refused command prints, after the progress of its stages."""
    name, *rest = words
    assert main([name, *TINY, f"output_dir={command.output}", *rest]) == 2
    (line,) = (text for text in capsys.readouterr().err.splitlines() if text.startswith("autotailor: "))
    return line


def test_a_budgets_winner_is_that_of_the_search(
    command: Command, device: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    budget_ms = device["winners"][6]["budget_ms"]
    result = command("search", "--budget-ms", str(budget_ms), "--device", device["name"])
    (chosen,) = result["chosen"]
    assert [row["digest"] for row in result["stages"][0]["result"]["winners"]] == [chosen["digest"]]
    assert chosen["predicted_ms"] <= budget_ms == chosen["budget_ms"]
    found = chosen["architecture"]
    layers_ms = sum(layer["predicted_ms"] for layer in found["layers"])
    assert layers_ms + found["offset_ms"] == pytest.approx(chosen["predicted_ms"], rel=1e-9)
    assert sum(section["predicted_ms"] for section in found["sections"]) == pytest.approx(layers_ms, rel=1e-9)
    shown = capsys.readouterr().out
    assert f"the best within {budget_ms:g} ms" in shown
    assert chosen["digest"] in shown
    assert all(section["name"] in shown for section in found["sections"])


def test_the_cheapest_of_an_accuracy_is_not_slower_than_any_winner_that_has_it(
    command: Command, device: Report
) -> None:
    base = command("search", "--accuracy-share", "0.01")["chosen"][0]["base"]
    assert base["name"] == "base model"
    best = max(row["predicted_accuracy"] for row in device["winners"])
    share = min(1.0, round(0.999 * best / base["accuracy"], 4))
    (chosen,) = command("search", "--accuracy-share", str(share))["chosen"]
    target = share * base["accuracy"]
    assert chosen["predicted_accuracy"] >= target
    good = [row["predicted_ms"] for row in device["winners"] if row["predicted_accuracy"] >= target]
    assert chosen["predicted_ms"] <= min(good)


def test_the_knee_is_on_the_front_or_its_absence_is_one_line(
    command: Command, device: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["search", *TINY, f"output_dir={command.output}", "--knee", "--json", str(command.output / "knee.json")]
    if main(words) == 0:
        (chosen,) = json.loads((command.output / "knee.json").read_text())["chosen"]
        assert chosen["digest"] in {row["digest"] for row in device["winners"]}
    else:
        assert f"knee on '{device['name']}': " in capsys.readouterr().err


def test_two_subnets_are_compared_layer_by_layer(
    command: Command, device: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    winner = device["winners"][0]
    (compared,) = command("compare", "largest", winner["digest"][:8])["compared"]
    first, second = compared["first"], compared["second"]
    assert (first["digest"], second["digest"]) == (device["base"]["digest"], winner["digest"])
    assert second["predicted_ms"] == pytest.approx(winner["predicted_ms"], rel=1e-9)
    difference_ms = sum(row["difference_ms"] for row in compared["layers"])
    assert difference_ms == pytest.approx(second["predicted_ms"] - first["predicted_ms"], rel=1e-6)
    assert sum(row["first"]["macs"] for row in compared["layers"]) == first["macs"] == device["base"]["macs"]
    assert sum(row["second"]["macs"] for row in compared["layers"] if row["second"]) == second["macs"]
    shown = capsys.readouterr().out
    assert "whole SubNet" in shown
    assert all(row["place"] in shown for row in compared["layers"])


def test_budgets_are_searched_for_a_comparison(command: Command, device: Report) -> None:
    fast, slow = (f"{device['winners'][at]['budget_ms']:g}ms" for at in (2, 9))
    (compared,) = command("compare", fast, slow)["compared"]
    for side, word in (("first", fast), ("second", slow)):
        assert compared[side]["word"] == word
        assert compared[side]["predicted_ms"] <= float(word.removesuffix("ms"))


def test_unknown_digests_and_budgets_out_of_reach_are_one_line(
    command: Command, device: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = device["winners"][0]["digest"]
    wrong = digest[:-1] + ("0" if digest[-1] != "0" else "1")
    line = refused(command, capsys, "compare", "largest", wrong)
    assert f"SubNet '{wrong}': is none of the " in line
    assert f"near: {digest}" in line
    line = refused(command, capsys, "search", "--budget-ms", "1e-6")
    assert "is below the fastest SubNet" in line
