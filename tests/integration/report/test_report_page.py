"""The report of a real run: self-contained, escaped, complete, and the same as data, page and terminal tables."""

import copy
import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import tailor_ir
from tasks.base.artifacts import RESULT_FILE
from tasks.base.pages.text import count, milliseconds, percent
from tasks.base.schemas.placed import PartitionAnswer
from tasks.base.schemas.results import GivenSuperNet
from tasks.placement.partition import plan_partition, table_of
from tasks.placement.partition.settings import PartitionSettings
from tasks.report import DATA_FILE, PAGE_FILE, Settings, Sources, charts, confusions, terminal_table
from tasks.report.gather import gather
from tasks.report.headline import fastest_within, headline, reference
from tasks.report.page import render
from tasks.report.partition import picture
from tests.support.report.page import Page

HOSTILE = "</script><script>alert(1)</script><img src=https://example.org/x.png>"
Report = dict[str, Any]


@pytest.fixture(scope="session")
def data(made: tuple[Report, Path]) -> Report:
    return made[0]


@pytest.fixture(scope="session")
def hostile(data: Report) -> Report:
    """The report with foreign texts wherever there can be some, a failed operator and a failed winner."""
    bad = copy.deepcopy(data)
    bad |= {"model": HOSTILE, "config": {"model": HOSTILE}, "versions": {HOSTILE: HOSTILE}}
    bad["supernet"]["variables"][0]["name"] = HOSTILE
    bad["sensitivities"]["rows"][0]["variable"] = HOSTILE
    (device,) = bad["devices"]
    device["name"] = device["runtime"]["cpu_model"] = HOSTILE
    device["breakdown"]["layers"][0]["place"] = HOSTILE
    device["breakdown"]["subnets"][device["winners"][-1]["digest"]]["architecture"] = [HOSTILE]
    device["lut"]["failures"] = [{"operator": "Conv", "digest": "00ff", "reason": HOSTILE}]
    device["winners"][0] |= {"measured_ms": None, "accuracy": None, "within_budget": None, "reason": HOSTILE,
                             "files": [], "on_front": False, "max_difference": None}  # fmt: skip
    device["winners"][1] |= {"within_budget": False, "measured_ms": 2 * device["winners"][1]["budget_ms"]}
    for row in device["winners"][2:]:  # a busy machine may have made others miss theirs
        row |= {"within_budget": True, "measured_ms": min(row["measured_ms"], row["budget_ms"])}
    bad["headline"] = headline(bad, 3.0)
    return bad


def test_files_hold_the_same_data(made: tuple[Report, Path]) -> None:
    data, out = made
    assert json.loads((out / DATA_FILE).read_text()) == data
    assert Page((out / PAGE_FILE).read_text()).words.startswith("test_resnet – AutoTailor")


def test_page_loads_nothing_and_forbids_the_network(hostile: Report) -> None:
    page = Page(render(hostile))
    for tag, attributes in page.tags:
        assert "src" not in attributes
        assert tag not in {"link", "iframe", "object", "base", "form", "img"}
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "connect-src" not in policy


def test_hostile_texts_are_shown_and_never_run(hostile: Report) -> None:
    page = Page(render(hostile))
    assert not any(script.strip().startswith("alert(1)") for script in page.scripts)
    assert page.words.count(HOSTILE) >= 6
    figures = [script for script in page.scripts if "Plotly.newPlot(" in script and len(script) < 1_000_000]
    assert figures
    assert not any("<img" in script for script in figures)


def test_page_says_whether_interactions_are_used(data: Report) -> None:
    pairs = data["sensitivities"]["validation"]["interactions"]
    words = Page(render(data)).words
    assert f"{pairs['evaluations']} pairs of modifications were measured, too" in words
    assert f"The predictor has {'them' if pairs['used'] else 'none of them'}." in words


def test_page_shows_budgets_misses_failures_and_operators(hostile: Report) -> None:
    words = Page(render(hostile)).words
    (device,) = hostile["devices"]
    missed = [row for row in device["winners"] if row["within_budget"] is False]
    (row,) = missed
    nearest = f"(the nearest, {row['digest'][:8]}, takes {milliseconds(row['measured_ms'])})"
    assert f"no measured SubNet keeps {milliseconds(row['budget_ms'])} {nearest}." in words
    assert all(milliseconds(row["budget_ms"]) in words for row in device["winners"])
    assert all(row["operator"] in words for row in device["lut"]["operators"])
    assert f"Conv 00ff : {HOSTILE}" in words


def test_table_of_winners_has_errors_of_accuracies(data: Report) -> None:
    (device,) = data["devices"]
    row = {**device["winners"][-1], "accuracy": 0.5, "predicted_accuracy": 0.625, "within_budget": True}
    known = {"winners": [row], "test_samples": 30, "uncertainty": {"samples": 50, "predictor_points": 1.2}}
    words = Page(render({**data, "devices": [{**device, **known}]})).words
    assert "50.0 ± 8.6 % 62.5 ± 1.2 %" in words


def test_page_says_how_winners_were_found_and_timed(data: Report) -> None:
    (device,) = data["devices"]
    assert sum(device["searched"].values()) == len(device["winners"])
    other = {
        **data,
        "devices": [{**device, "batch": 4, "searched": {"optimal": 2, "within 0.3 points of the optimum": 1}}],
    }
    words = Page(render(other)).words
    assert "Latency: p50 at batch 4." in words
    assert "optimal for 2 budgets; within 0.3 points of the optimum for 1 budget." in words
    assert f"fp32, {device['runtime']['cpu_model']}" in words
    spread = device["latency_correction"]["spread"]
    assert (f"each predicted from the others: {percent(spread)}" in words) == (spread is not None)
    for family, factor in device["latency_correction"]["factors"].items():
        assert f"{factor:.3g} × {family}" in words


def test_the_terminal_names_files_that_are_missing(hostile: Report, data: Report) -> None:
    def text(report: Report) -> str:
        console = Console(width=200)
        with console.capture() as captured:
            console.print(*terminal_table(report))
        return " ".join(captured.get().split())

    different = len({row["digest"] for row in hostile["devices"][0]["winners"]})
    failed = hostile["devices"][0]["winners"][0]
    assert f"1 of {different} SubNets lack files or measurements: {failed['digest']}: {HOSTILE}" in text(hostile)
    assert "lack files" not in text(data)


def test_a_subnet_over_several_devices_is_shown_with_its_cuts_and_plans(sources: Sources, hostile: Report) -> None:
    (device,) = sources.devices
    asked = PartitionSettings(
        devices=(device.name, "server"), bandwidth_mbps=(1e-4, 1e6), latency_ms=0.0, slow_down={device.name: 1000.0}
    )
    net = tailor_ir.load(sources.supernet)
    tables = [table_of(name, device.profile, device.latency) for name in asked.devices]
    plans = plan_partition(net, net.max_config, tables, asked)
    report = gather(replace(sources, partition=plans), Settings())
    found = PartitionAnswer.of_json(report["partition"], "report")
    slow, fast = found.plans
    assert [stay.device for stay in slow.stays] == [device.name]
    assert [stay.device for stay in fast.stays][-1] == "server"
    html = render(report)
    assert str(picture(found)) in html
    words = Page(html).words
    assert f"The largest SubNet on {device.name}, server; the first is the coordinator" in words
    assert all(name in words for name in ("Operators and cuts", "best single cut (Neurosurgeon)", "0.0001"))
    assert hostile["partition"] is None
    assert "Over several devices" not in render(hostile)


def test_lut_summary_adds_up(data: Report) -> None:
    lut = data["devices"][0]["lut"]
    assert sum(row["count"] for row in lut["operators"]) == lut["entries"] == data["supernet"]["unique_operators"]
    assert sum(row["ok"] for row in lut["operators"]) == lut["ok"] > 0
    assert all(row["total_ms"] > 0 for row in lut["operators"] if row["ok"])


def test_winners_carry_prediction_measurement_and_files(data: Report) -> None:
    for row in data["devices"][0]["winners"]:
        assert row["predicted_ms"] <= row["budget_ms"]
        assert row["within_budget"] == (row["measured_ms"] <= row["budget_ms"])
        assert 0 <= row["accuracy"] <= 1
        assert f"{row['digest']}.onnx" in row["files"]
        assert row["max_difference"] <= 1e-4


def test_the_network_as_it_was_given_is_a_row_with_the_true_scores(data: Report) -> None:
    report = copy.deepcopy(data)
    (device, *_) = report["devices"]
    device["base"] |= {"row": "as given", "files": ["as_given.onnx"], "true_score": 0.9, "labelled": 100}
    for row in device["winners"]:
        row |= {"true_score": 0.8, "labelled": 100}
    words = Page(render(report)).words
    assert all(one in words for one in ("as given", "as_given.onnx", "true score", "90.0 ± 3.1 %", "80.0 ± 4.0 %"))
    plain = Page(render(data)).words
    assert not any(one in plain for one in ("as given", "true score"))
    table = terminal_table(report)[1]
    assert [str(column.header) for column in table.columns][4:6] == [f"test {device['score']}", "true score"]
    assert next(iter(table.columns[0].cells)) == "as given"
    assert next(iter(table.columns[5].cells)) == "90.0 ± 3.1 %"


def test_measured_front_is_not_dominated(data: Report) -> None:
    rows = data["devices"][0]["winners"]
    front = [row for row in rows if row["on_front"]]
    assert front
    for kept in front:
        assert not any(r["measured_ms"] < kept["measured_ms"] and r["accuracy"] >= kept["accuracy"] for r in rows)


def test_front_chart_holds_winners_base_baseline_and_random_subnets(data: Report) -> None:
    (device,) = data["devices"]
    traces = {trace.name: trace for trace in charts.front(device).data}
    assert {"winners", "base model", "random SubNets (validation accuracy)"} <= set(traces)
    assert sum(name.startswith("uniformly shrunk") for name in traces) == 2
    front = {row["digest"]: row["measured_ms"] for row in device["winners"] if row["on_front"]}
    assert list(traces["winners"].x) == sorted(front.values())
    assert "budget" in traces["winners"].text[0]
    for digest, text in zip(traces["winners"].customdata, traces["winners"].text, strict=True):
        stages = device["breakdown"]["subnets"][digest]["architecture"]
        assert "resolution" in stages[0]
        assert all(f"<br>{line}" in text for line in stages)
    assert traces["base model"].y == (12.0,)


def test_winners_of_a_given_supernet_are_seen_beside_its_largest_subnet(sources: Sources, tmp_path: Path) -> None:
    ends = {"largest_test_accuracy": 0.5, "smallest_test_accuracy": 0.25}
    GivenSuperNet(largest_validation_accuracy=0.4, smallest_validation_accuracy=0.2, **ends).write(
        tmp_path / RESULT_FILE
    )
    found = gather(replace(sources, base=None, given=tmp_path), Settings())
    (device,) = found["devices"]
    assert reference(found) == ("largest SubNet", 0.5)
    assert {trace.name: trace.y for trace in charts.front(device).data}["largest SubNet"] == (50.0,)
    names, _, _, _, accuracies, *_ = terminal_table(found)[1].columns
    assert (next(iter(names.cells)), next(iter(accuracies.cells))) == ("largest SubNet", "50.0 %")


def test_front_chart_draws_the_whole_front_where_there_is_one(data: Report) -> None:
    (device,) = data["devices"]
    whole = device["whole_front"]
    (trace,) = [trace for trace in charts.front(device).data if trace.name.startswith("whole front")]
    assert list(trace.x) == whole["predicted_ms"]
    assert list(trace.y) == [100 * accuracy for accuracy in whole["predicted_accuracy"]]
    assert f": {len(whole['predicted_ms'])} SubNets" in trace.name
    without = charts.front({**device, "whole_front": None})
    assert not [trace for trace in without.data if trace.name.startswith("whole front")]


def test_error_chart_tells_held_out_subnets_from_those_of_the_fit(data: Report) -> None:
    (device,) = data["devices"]
    traces = {trace.name: trace for trace in charts.latency_errors(device).data}
    assert len(traces["held-out SubNets"].x) == device["latency_validation"]["n"]
    assert len(traces["SubNets of the fit"].x) + len(traces["held-out SubNets"].x) == len(device["random"])
    assert len(traces["winners"].x) == len(device["winners"])


def test_accuracy_chart_pairs_predictions_with_measurements(data: Report) -> None:
    (device,) = data["devices"]
    traces = {trace.name: trace for trace in charts.accuracy_errors(device).data}
    known = [row for row in device["random"] if row["accuracy"] is not None]
    assert list(traces["random SubNets (validation)"].y) == [100 * row["accuracy"] for row in known]
    assert list(traces["winners (test)"].x) == [100 * row["predicted_accuracy"] for row in device["winners"]]


def test_layers_of_every_shown_subnet_add_up_to_its_prediction(data: Report) -> None:
    (device,) = data["devices"]
    found = device["breakdown"]
    rows = [*device["winners"], *device["baseline"], *device["random"]]
    assert {row["digest"] for row in rows} | {device["base"]["digest"]} == set(found["subnets"])
    for row in rows:
        subnet = found["subnets"][row["digest"]]
        operators = [found["operators"][operator] for _, operator in subnet["layers"]]
        assert found["offset_ms"] + sum(one["predicted_ms"] for one in operators) == pytest.approx(
            row["predicted_ms"], rel=1e-9
        )
        assert sum(section["predicted_ms"] for section in subnet["sections"]) + found["offset_ms"] == pytest.approx(
            row["predicted_ms"], rel=1e-9
        )
        assert len({number for number, _ in subnet["layers"]}) == len(subnet["layers"]) <= len(found["layers"])
    largest = found["subnets"][device["base"]["digest"]]
    assert [number for number, _ in largest["layers"]] == list(range(len(found["layers"])))
    assert sum(found["operators"][operator]["macs"] for _, operator in largest["layers"]) == device["base"]["macs"]
    assert len(found["operators"]) <= data["supernet"]["unique_operators"]


def test_labels_of_figures_are_escaped() -> None:
    row = {"variable": "<a href='x'>v</a>", "choice": 1.0, "delta_points": -1.0, "standard_error_points": 0.1}
    labels = charts.sensitivities([{**row, "delta_loss": 0.1}], "accuracy").data[0].y
    assert labels == ("&lt;a href=&#x27;x&#x27;&gt;v&lt;/a&gt; = 1",)


def test_headline_takes_the_fastest_measured_winner_that_is_accurate_enough(data: Report) -> None:
    (device,) = data["devices"]
    assert reference(data) == ("base model", 0.12)
    row = fastest_within(device, 0.12, 3.0)
    good = [r["measured_ms"] for r in device["winners"] if r["accuracy"] >= 0.09 - 1e-9]
    assert (row["measured_ms"] if row else None) == min(good, default=None)
    assert fastest_within(device, 2.0, 3.0) is None
    best = copy.deepcopy(data)
    best["accuracies"] = {}
    assert reference(best) == ("best winner", max(r["accuracy"] for r in device["winners"]))


def test_terminal_tables_have_a_row_per_budget_that_is_kept_and_keep_brackets(hostile: Report) -> None:
    tables = terminal_table({**hostile, "model": "[red]net"})
    budgets = len(hostile["devices"][0]["winners"])
    assert [table.row_count for table in tables] == [len(hostile["headline"]), budgets - 1 + 1]
    stream = StringIO()
    for table in tables:
        Console(file=stream, width=160).print(table)
    assert "[red]net" in stream.getvalue()
    assert (
        " ".join(stream.getvalue().split()).count("no measured SubNet keeps") == 2
    )  # in the headline, and before the table
    assert stream.getvalue().count("failed") == 1


def test_texts() -> None:
    assert count(412) == "412"
    assert count(str(21276000000000)) == "2.12e13"
    assert milliseconds(0.00123456) == "0.001235 ms"
    assert milliseconds(None) == "–"


def test_a_run_without_a_refinement_tells_nothing_of_one(data: Report) -> None:
    words = Page(render(data)).words
    assert "How the search found them" in words
    assert "What came from the refinement is not counted" not in words


def test_confusions_are_those_of_the_base_network_and_of_the_headlines_winner(data: Report) -> None:
    base, winner = data["confusions"]
    (device,) = data["devices"]
    fastest = fastest_within(device, reference(data)[1] or 0.0, data["settings"]["accuracy_points"])
    shown = fastest or max(device["winners"], key=lambda row: float(row["accuracy"]))
    assert (base["device"], base["title"]) == ("", "base model")
    assert winner["title"] == f"here: winner {shown['digest'][:8]}"
    counts = winner["confusion"]
    assert sum(map(sum, counts)) == 50, "test images of the run"
    assert sum(counts[number][number] for number in range(10)) == round(50 * shown["accuracy"])
    (first, second) = (confusions.figure(row).data[0] for row in (base, winner))
    assert first.x[3] == "&lt;b&gt;3&lt;/b&gt;"
    assert list(first.z[0][:3]) == [50.0, 50.0, 0.0]
    assert second.text[0][0] == str(counts[0][0] or "")
    words = Page(render(data)).words
    assert "Confusions Test samples by class and by answer" in words
    assert "Confusions" not in Page(render({**data, "confusions": []})).words


def test_page_counts_different_winners_and_fused_operators(data: Report) -> None:
    (device,) = data["devices"]
    best = {**device["winners"][0], "on_front": True}
    other = {**device["winners"][0], "digest": device["base"]["digest"], "on_front": False}
    operators = [
        {**row, "fused": 7 if row is device["lut"]["operators"][0] else 0} for row in device["lut"]["operators"]
    ]
    lut = {**device["lut"], "fused": 7, "operators": operators}
    page = Page(render({**data, "devices": [{**device, "winners": [best, best, other], "lut": lut}]}))
    assert "3 budgets, 2 different winners, 1 of them on the measured front." in page.words
    first = operators[0]
    assert "operator count ok fused failed" in page.words
    assert f"{first['operator']} {first['count']} {first['ok']} 7 {first['failed']} " in page.words
    none = {**lut, "fused": 0}
    assert " ok fused failed" not in Page(render({**data, "devices": [{**device, "lut": none}]})).words
