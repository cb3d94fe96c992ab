"""Choosing SubNets of a finished run on the command line, and two of them side by side."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from tasks.base.pages.text import milliseconds
from tasks.base.schemas.placed import ChosenSubNet
from tasks.base.schemas.winners import FRONT_FILE, Front, Winner
from tests.support.flows.fixtures import Command
from tests.support.flows.tiny import TINY

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


@pytest.mark.long
def test_a_search_shows_a_table_of_its_winners(
    command: Command, device: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    winners = command("search")["stages"][0]["result"]["winners"]
    shown = capsys.readouterr().out
    cells = [{cell.strip() for cell in line.split("│")} for line in shown.splitlines()]
    assert {"budget", "digest"} <= set(shown.replace("┃", " ").split())
    assert [row["budget_ms"] for row in winners] == [row["budget_ms"] for row in device["winners"]]
    for row in winners:
        assert any({milliseconds(row["budget_ms"]), row["digest"]} <= line for line in cells), row["digest"]
    assert not set("{…") & set(shown), "no JSON, whole or cut"


@pytest.mark.long
def test_a_budgets_winner_is_that_of_the_search(
    command: Command, device: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    budget_ms = device["winners"][6]["budget_ms"]
    file = command.output.parent / "chosen.json"
    result = command("search", "--budget-ms", str(budget_ms), "--device", device["name"], "--to", str(file))
    (chosen,) = result["chosen"]
    assert chosen["file"] == str(file)
    stored = ChosenSubNet.read(file)
    assert (stored.device, stored.rule) == (device["name"], chosen["rule"]["text"])
    assert (stored.subnet.digest, stored.subnet.budget_ms) == (chosen["digest"], budget_ms)
    assert not list(file.parent.glob(".chosen*")), "written whole"
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


@pytest.mark.long
def test_the_cheapest_of_an_accuracy_is_not_slower_than_any_winner_that_has_it(
    command: Command, device: Report
) -> None:
    (first,) = command("search", "--accuracy-share", "0.01")["chosen"]
    base, file = first["base"], command.output / "chosen" / f"{device['name']}.json"
    assert first["file"] == str(file)
    assert ChosenSubNet.read(file).subnet.digest == first["digest"]
    assert base["name"] == "base model"
    best = max(row["predicted_accuracy"] for row in device["winners"])
    share = min(1.0, round(0.999 * best / base["accuracy"], 4))
    (chosen,) = command("search", "--accuracy-share", str(share))["chosen"]
    target = share * base["accuracy"]
    assert chosen["predicted_accuracy"] >= target
    good = [row["predicted_ms"] for row in device["winners"] if row["predicted_accuracy"] >= target]
    assert chosen["predicted_ms"] <= min(good)


@pytest.mark.long
def test_the_knee_is_on_the_front_or_its_absence_is_one_line(
    command: Command, device: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["search", *TINY, f"output_dir={command.output}", "--knee", "--json", str(command.output / "knee.json")]
    if main(words) == 0:
        found = json.loads((command.output / "knee.json").read_text())
        (chosen,), (stage,) = found["chosen"], found["stages"]
        assert chosen["digest"] in {row.digest for row in Front.read(Path(stage["folder"]) / FRONT_FILE).winners}
    else:
        assert f"knee on '{device['name']}': " in capsys.readouterr().err


@pytest.mark.long
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
    assert "predicted latency [ms]; difference" in shown
    assert all(row["place"] in shown for row in compared["layers"])


def write_chosen(command: Command, device: Report, file: Path) -> Winner:
    """A file of the search's slowest winner but two."""
    fronts = (Front.read(path) for path in command.output.glob("stages/search/*/*/front.json"))
    found = next(front.winners[9] for front in fronts if len(front.winners) > 9)
    ChosenSubNet(device=device["name"], rule="by hand", subnet=found).write(file)
    return found


@pytest.mark.long
def test_the_subnet_of_a_file_is_exported_alone(command: Command, device: Report, tmp_path: Path) -> None:
    chosen = write_chosen(command, device, tmp_path / "slow.json")
    (stage,) = command("export", str(tmp_path / "slow.json"), "export.formats=[onnx]")["stages"]
    assert stage["stage"] == f"export/{device['name']}"
    assert [row["digest"] for row in stage["result"]["winners"]] == [chosen.digest]
    assert Path(stage["folder"], f"{chosen.digest}.onnx").exists()
    assert stage["result"]["baseline"] == []


@pytest.mark.long
def test_a_budget_is_searched_for_a_comparison_with_the_subnet_of_a_file(
    command: Command, device: Report, tmp_path: Path
) -> None:
    budget, file = f"{device['winners'][2]['budget_ms']:g}ms", str(tmp_path / "slow.json")
    slow = write_chosen(command, device, Path(file))
    (compared,) = command("compare", budget, file)["compared"]
    assert [compared[side]["word"] for side in ("first", "second")] == [budget, file]
    assert compared["first"]["predicted_ms"] <= float(budget.removesuffix("ms"))
    assert compared["second"]["digest"] == slow.digest


@pytest.mark.long
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
