"""The whole pipeline on a space with exits and alternatives to blocks: from the command line to files and the report."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_runtime.bundle.chains import ExitChain
from adaptive_runtime.exits import NO_EXIT, Decider, ExitTable, Thresholds
from tasks.base.schemas.winners import FRONT_FILE, Front
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import EvaluationData
from tasks.exits.policies import Policies
from tests.support.flows.fixtures import Command
from tests.support.flows.tiny import TINY

POLICY = ("exits.epsilon=0.05", "exits.subnets=2", "exits.pictures=2", "exits.by_expected=true")
"""A promise for which the few held-out images are enough."""
TIMED = (
    "profile.subnets_per_operator=20",
    "profile.subnet.warmup_ms=10",
    "profile.subnet.time_cap_ms=20",
    "profile.subnet.layers_ms=30",
)
"""Longer than in other tests: which exits pay off follows from latencies."""
WISH = (
    "space.exits=auto",
    "space.alternatives=[merged,pruned_0.5,low_rank_0.5,separable]",
    "space.resolution=frozen",
    "search=exact",
    "finetune.random_subnets=2",
    *POLICY,
    *TIMED,
)
ALTERNATIVES = {"merged_2", "merged_3", "pruned_0.5", "low_rank_0.5", "separable"}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Commands in an output folder of their own: others count what is in the shared one."""
    return Command(tmp_path_factory.mktemp("exits") / "out", (*TINY, *WISH))


@pytest.fixture(scope="module")
def report(own: Command, trained_stages: Callable[[Path, Sequence[str]], None]) -> dict[str, Any]:
    """Of a base network that is trained already: it has neither exits nor other blocks."""
    trained_stages(own.output, ["base"])
    return own("run")


def replaced_blocks(config: Mapping[str, Any]) -> dict[str, str]:
    """Blocks of stages, as `block.2` -> the alternative in their place."""
    found = {name: choice for name, choice in config.items() if choice in ALTERNATIVES}
    return {name.removesuffix(".block").partition(".")[2].partition(".")[2]: one for name, one in found.items()}


def test_winners_have_exits_and_other_blocks(report: dict[str, Any], own: Command) -> None:
    (device,) = report["devices"]
    cards = [json.loads(file.read_text()) for file in (own.output / "exports" / "onnxruntime").glob("*.json")]
    rows = [row for card in cards if "architecture" in card for row in card["architecture"]["variables"]]
    assert any(row["choice"] != "last" for row in rows if row["name"] == "exit"), rows
    chosen = {row["choice"] for row in rows}
    assert chosen & ALTERNATIVES, chosen
    for winner in device["winners"]:
        assert winner["reason"] is None
        assert winner["max_difference"] <= 1e-4
    assert list((own.output / "exports" / "onnxruntime").glob("*.onnx"))
    subnets = device["breakdown"]["subnets"]
    for winner in device["winners"]:
        told = "\n".join(subnets[winner["digest"]]["architecture"])
        assert all(f"{name} {choice}" in told for name, choice in replaced_blocks(winner["config"]).items()), told
    assert "exit" in Path(report["report_html"]).read_text()


def policies_of(own: Command) -> tuple[Policies, Path]:
    """The latest policies on the device, and their folder."""
    files = own.output.glob("stages/exits/onnxruntime/*/policies.json")
    file = max(files, key=lambda one: one.stat().st_mtime)
    return Policies.read(file), file.parent


def test_thresholds_come_with_a_promise_and_what_they_come_to(report: dict[str, Any], own: Command) -> None:
    found, _ = policies_of(own)
    assert 1 <= len(found.subnets) <= 2
    best = found.best
    assert best is not None, [row.reason for row in found.subnets]
    assert best.tested is not None
    file = own.output / "exports" / "onnxruntime" / "exits" / f"{best.digest}.thresholds.json"
    thresholds = Thresholds.from_json(file.read_bytes())
    assert thresholds.promise is not None
    assert thresholds.promise.epsilon == 0.05
    assert thresholds.promise.p_value <= 0.05
    assert not Decider(thresholds).sample().left
    assert best.config["exit"] == "last"
    shares = [one.share or 0 for one in best.exits]
    assert sum(shares) == pytest.approx(1)
    expected_ms = sum(share * one.latency_ms for share, one in zip(shares, best.exits, strict=True))
    assert best.tested.expected_ms == pytest.approx(expected_ms)
    assert best.tested.accuracy == pytest.approx(
        sum(share * (one.share_accuracy or 0) for share, one in zip(shares, best.exits, strict=True))
    )
    for place, one in enumerate(best.exits):
        assert (one.latency_ms > one.alone_ms) == any(head < place for head in thresholds.needed)


def test_the_chain_on_the_device_leaves_as_the_policy_says(report: dict[str, Any], own: Command) -> None:
    found, _ = policies_of(own)
    best = found.best
    assert best is not None
    assert best.tested is not None
    folder, *_ = (own.output / "exports" / "onnxruntime").glob(f"*-{best.digest[:8]}.onnx.segments")  # one a budget
    splits = load_splits(DataSettings(kind="digits"))
    images = EvaluationData(splits["test"], splits["train"])
    with ExitChain.open(folder) as chain:
        _, _, height, width = chain.manifest.input.shape
        assert height is not None
        assert width is not None
        batches = [(x_BCHW.numpy(), y_B.numpy()) for x_BCHW, y_B in images.batches((height, width))]
        x_NCHW, labels_N = map(np.concatenate, zip(*batches, strict=True))
        answered = chain.infer(x_NCHW)
    shares = {one.exit: one.share for one in best.exits}
    for place, name in enumerate(chain.manifest.exits):
        assert (answered.exits == place).mean() == pytest.approx(shares[name], abs=0.005)
    assert sum(shares[name] or 0 for name in chain.manifest.exits) == pytest.approx(1)
    assert (answered.answers == labels_N).mean() == pytest.approx(best.tested.accuracy, abs=0.005)


def number_of(table: ExitTable, name: str) -> int:
    """An exit as the choices of a table name it."""
    return NO_EXIT if name == "last" else table.exits.index(name)


def test_an_exit_is_never_chosen_where_a_subnet_without_one_is_better(report: dict[str, Any], own: Command) -> None:
    text = (own.output / "exports" / "onnxruntime" / "exits" / "exit_table.json").read_bytes()
    table = ExitTable.from_json(text)
    measured = {one.exit for row in policies_of(own)[0].subnets for one in row.exits}  # a merged block has none inside
    assert {number_of(table, name) for name in measured} <= {choice.exit for choice in table.choices}
    assert {"last"} < measured
    for budget_ms in sorted({choice.latency_ms for choice in table.choices}):
        chosen = table.best_within(budget_ms)
        assert chosen is not None
        fitting = [choice for choice in table.choices if choice.latency_ms <= budget_ms]
        assert chosen.accuracy == max(choice.accuracy for choice in fitting)
        if chosen.exit != NO_EXIT:
            assert all(
                (one.accuracy, -one.latency_ms) < (chosen.accuracy, -chosen.latency_ms)
                for one in fitting
                if one.exit == NO_EXIT
            )


def test_the_table_has_what_was_measured(report: dict[str, Any], own: Command) -> None:
    found, folder = policies_of(own)
    table = ExitTable.from_json((folder / "exit_table.json").read_bytes())
    for row in found.subnets:
        subnet = table.subnets.index(row.digest)
        known = {choice.exit: choice for choice in table.choices if choice.subnet == subnet}
        for one in row.exits:
            choice = known[number_of(table, one.exit)]
            assert (choice.accuracy, choice.latency_ms) == (one.accuracy["validation"], one.alone_ms)


def test_the_report_shows_who_leaves_early(report: dict[str, Any], own: Command) -> None:
    found = report["devices"][0]["policies"]
    assert found["best"] in {row["digest"] for row in found["subnets"]}
    cards = [card for card in report["headline"] if card["label"] == "onnxruntime: leaving early"]
    assert [card["value"][0] for card in cards] == ["−"]
    page = Path(report["report_html"]).read_text()
    assert "Images that leave first" in page
    assert page.count('<img src="data:image/png;base64,') == 4
    assert "Winners as whole SubNets" in page
    assert "by expected latency, at the same rates" in page


def test_winners_by_expected_latency_are_at_least_as_accurate_by_prediction(
    report: dict[str, Any], own: Command
) -> None:
    found, _ = policies_of(own)
    (folder,) = {stage["folder"] for stage in own("search")["stages"]}  # the winners before files were measured
    plain = {row.budget_ms: row.predicted_accuracy for row in Front.read(Path(folder) / FRONT_FILE).winners}
    assert found.by_expected
    for row in found.by_expected:
        assert row.predicted_ms <= row.budget_ms
        if row.budget_ms in plain:
            assert row.predicted_accuracy >= plain[row.budget_ms] - 1e-9


def test_too_few_images_are_told_and_the_run_goes_on(report: dict[str, Any], own: Command) -> None:
    told = own("run", "exits.epsilon=0.001")
    (device,) = told["devices"]
    assert device["winners"]
    found, folder = policies_of(own)
    assert {row.reason for row in found.subnets} == {
        f"exits: {found.images} held-out images are too few to promise at most 0.10% of accuracy lost, with 95.0% "
        f"confidence; allowed: {found.needed} or more; hold out more images, or take a larger epsilon or a smaller "
        "confidence"
    }
    assert all(row.exits for row in found.subnets)
    assert not list(folder.glob("*.thresholds.json"))
    assert not list((own.output / "exports" / "onnxruntime" / "exits").glob("*.thresholds.json"))
    (card,) = (card for card in told["headline"] if card["label"].endswith("leaving early"))
    assert "too few" in card["note"]


def test_policies_are_not_made_again(report: dict[str, Any], own: Command) -> None:
    again = own("run")
    (row,) = (row for row in again["stages"] if row["stage"] == "exits/onnxruntime")
    assert row["cached"]


def test_one_subnet_is_shown_with_its_exit_and_its_blocks(
    report: dict[str, Any], own: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    budget_ms = report["devices"][0]["winners"][0]["budget_ms"]
    (chosen,) = own("search", "--budget-ms", str(budget_ms))["chosen"]
    shown = capsys.readouterr().out
    assert "exit" in shown
    assert all(f"{name} {choice}" in shown for name, choice in replaced_blocks(chosen["config"]).items())


def test_the_page_of_a_supernet_shows_its_exits(own: Command) -> None:
    own("compile", "--view")
    assert "exit/" in (own.output / "supernet.html").read_text()
