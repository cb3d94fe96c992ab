"""The report of a run with refinement, several formats and a bundle: what was measured, what was replaced and why, sizes."""

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By

from profiling_agents.client import local_agent
from tasks import export, report, search
from tasks.base.artifacts import Workspace, read_json
from tasks.base.pages.text import milliseconds, percent, size
from tasks.base.progress import Silent
from tasks.base.schemas.winners import MEASURED_FILE, Candidates, Front, Replaced
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import EvaluationData
from tasks.prediction import latency as latency_stage
from tasks.prediction import sensitivity
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.latency import LatencyPredictor
from tasks.report.page import render
from tasks.report.parts import refinement
from tasks.search.refine import stage as refine
from tests.support.report.browser import BROWSER, DRIVER, opened
from tests.support.report.fixtures import PREDICT, QUICK
from tests.support.report.page import Page

Report = dict[str, Any]


@pytest.fixture(scope="module")
def folders(sources: report.Sources, tmp_path_factory: pytest.TempPathFactory) -> report.DeviceSources:
    """The device of the run, with its winners refined, and exported as ONNX files, torch archives and a bundle."""
    (device,) = sources.devices
    refined, exported = tmp_path_factory.mktemp("refined"), tmp_path_factory.mktemp("exported")
    settings = refine.RefineSettings(candidates=2)
    latency = LatencyPredictor.load(device.latency / latency_stage.LATENCY_FILE)
    accuracy = AccuracyPredictor.load(sources.sensitivities / sensitivity.SENSITIVITIES_FILE)
    data = DataSettings(kind="digits", workers=1)
    splits = load_splits(data)
    images = {"test": EvaluationData(splits["test"], splits["train"], limit=50, recalibration_images=64)}
    formats = export.Settings(measure=QUICK, formats=("onnx", "torch"), bundle=True)
    with local_agent(backend="onnxruntime") as client, client.lease():
        here = search.Target(name="here", latency=latency)
        validation = sensitivity.images_of(PREDICT, data)
        devices = [refine.SearchedDevice(here, device.search, lambda: nullcontext(client))]
        searched = search.SearchedSuperNet(supernet=sources.supernet, accuracy=accuracy, images=validation)
        refine.measure(settings, PREDICT, searched, devices, refined, Silent())
        refine.choose(settings, searched, {"here": device.search}, refined, Silent())
        export.run(
            export.ExportRequest(settings=formats, supernet=sources.supernet, search=refined, data=images),
            client,
            Workspace(out=exported, progress=Silent()),
        )
    return dataclasses.replace(device, search=refined, export=exported)


@pytest.fixture(scope="module")
def data(sources: report.Sources, folders: report.DeviceSources, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return report.run(
        dataclasses.replace(sources, devices=[folders]), report.Settings(), tmp_path_factory.mktemp("out")
    )


def test_refinement_is_told_with_its_candidates_and_the_predictors_errors(
    data: Report, folders: report.DeviceSources, sources: report.Sources
) -> None:
    (device,) = data["devices"]
    asked = {row["budget_ms"] for row in read_json(sources.devices[0].search / "front.json")["winners"]}
    front = read_json(folders.search / "front.json")
    found = device["refinement"]
    assert found["measured"] == len(found["candidates"]) >= len({row["digest"] for row in front["winners"]})
    assert found["latency"] == front["refinement"]["latency"]
    assert len(found["replaced_winners"]) == found["replaced"]
    measured = {row["digest"]: row for row in found["candidates"]}
    for row in device["winners"]:
        assert row["digest"] in measured
    words = Page(render(data)).words
    assert f"{found['measured']} SubNets were measured to choose the winners" in words
    assert found["moved"] == sum(row["budget_ms"] not in asked for row in device["winners"])
    assert (f"and {found['moved']} budgets were moved to where" in words) == bool(found["moved"])
    missed_ms = [row["budget_ms"] for row in front["winners"] if not row["within_budget"]]
    assert found["missed_ms"] == missed_ms, "some, where the machine has become slower since the search"
    assert ("; nothing measured keeps" in words) == bool(missed_ms)
    assert f"latency, median error {percent(found['latency']['median_relative_error'])}" in words
    assert f"accuracy, mean error {found['accuracy']['mean_error_points']:.2f} points" in words
    evaluated = {row["digest"] for row in found["candidates"] if row["measured_accuracy"] is not None}
    later, learned = evaluated & read_json(folders.search / MEASURED_FILE)["likely"].keys(), found["learned"]
    assert (learned["n"] if learned else 0) == len(later)
    assert ("What was learned from those of earlier rounds" in words) == bool(later)
    if learned:
        assert f"on the {learned['n']} of later ones: mean error {learned['mean_error_points']:.2f} points" in words


def test_a_replaced_winner_stands_beside_the_new_one_with_the_reason(
    data: Report, folders: report.DeviceSources, tmp_path: Path
) -> None:
    front, measured = Front.read(folders.search / "front.json"), Candidates.read(folders.search / MEASURED_FILE)
    rows = tuple(
        row if row.accuracy is not None else row.model_copy(update={"accuracy": 0.5, "loss": 1.0})
        for row in measured.candidates  # few are evaluated where the machine has become slower since the search
    )
    measured.model_copy(update={"candidates": rows}).write(tmp_path / MEASURED_FILE)
    as_it_is = refinement(tmp_path, front)
    assert as_it_is is not None
    known = {row["digest"]: row for row in as_it_is["candidates"]}
    first, second = list(known)[:2]
    own_ms = known[first]["measured_ms"]
    replaced = Replaced(digest=first, measured_ms=own_ms, measured_accuracy=known[first]["measured_accuracy"])
    row = front.winners[0].model_copy(
        update={"digest": second, "replaces": replaced, "measured_ms": 0.5 * own_ms, "within_budget": True}
        | {"measured_accuracy": known[first]["measured_accuracy"] + 0.02, "smoothed_ms": None}
    )
    told = []
    for budget_ms in (own_ms / 1.25, own_ms / 0.995, 2 * own_ms):
        winners = (row.model_copy(update={"budget_ms": budget_ms}),)
        found = refinement(tmp_path, front.model_copy(update={"winners": winners}))
        assert found is not None
        (line,) = found["replaced_winners"]
        assert line["before"] == known[first]
        assert line["after"] == known[second]
        told.append(line["reason"])
    assert told == ["misses the budget by 25.0 %", "leaves less than the margin of 1.0 %", "2.0 points less accurate"]
    changed = {**data["devices"][0], "refinement": found}
    page = Page(render({**data, "devices": [changed]})).words
    assert "2.0 points less accurate" in page
    assert f"{first[:8]} {milliseconds(known[first]['predicted_ms'])}" in page


def test_formats_and_bundle_are_told_with_the_sizes_of_their_files(data: Report, folders: report.DeviceSources) -> None:
    found = data["devices"][0]["exported"]
    rows = {row["name"]: row for row in found["formats"]}
    subnets = {row["digest"] for row in data["devices"][0]["winners"]}
    assert list(rows) == ["onnx", "torch"]
    for name, suffix in (("onnx", ".onnx"), ("torch", ".pt2")):
        sizes = [(folders.export / f"{digest}{suffix}").stat().st_size for digest in subnets]
        assert rows[name]["bytes"] == sum(sizes)
        assert (rows[name]["smallest_bytes"], rows[name]["largest_bytes"]) == (min(sizes), max(sizes))
        assert (rows[name]["subnets"], rows[name]["failed"]) == (len(subnets), 0)
    bundle = sum(file.stat().st_size for file in (folders.export / "bundle").iterdir())
    exported = [row["digest"] for row in read_json(folders.export / "exports.json")["subnets"]]
    assert subnets <= set(exported)
    alone = sum((folders.export / f"{digest}.onnx").stat().st_size for digest in exported)
    words = Page(render(data)).words
    assert f"all of them in {size(bundle)}, instead of {size(alone)} as single ONNX files" in words
    assert "onnxruntime fp32, on the device" in words


def test_what_did_not_run_is_not_there(made: tuple[Report, Path]) -> None:
    (device,) = made[0]["devices"]
    assert device["refinement"] is None
    assert device["exported"]["bundle"] is None
    words = Page(render(made[0])).words
    assert "Measured refinement" not in words
    assert "undle" not in words
    assert "Exported files" in words


@pytest.mark.skipif(BROWSER is None or DRIVER is None, reason="no browser: apt-get install chromium chromium-driver")
def test_candidates_are_drawn_in_a_browser(data: Report, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(render(data))
    evaluated = [row for row in data["devices"][0]["refinement"]["candidates"] if row["measured_accuracy"] is not None]
    with opened(tmp_path / "profile") as driver:
        driver.get(file.as_uri())
        script = "return document.getElementById('candidates-0').data.find((t) => t.name === 'candidates').x.length"
        assert driver.execute_script(script) == len(evaluated)
        points = driver.find_elements(By.CSS_SELECTOR, "#candidates-0 .scatterlayer path.point")
        assert len(points) >= len(evaluated)
        assert driver.find_element(By.CSS_SELECTOR, ".exported table").is_displayed()
        assert driver.get_log("browser") == []
