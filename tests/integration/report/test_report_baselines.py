"""Baselines in the report: points with labels, a card, a table on the page and in the terminal."""

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from selenium.webdriver import Chrome

from profiling_agents.client import local_agent
from profiling_agents.messages import MeasureSettings
from tasks import report, search
from tasks.base.progress import Silent
from tasks.data import DataSettings
from tasks.measuring.subnets import LeasedDevice
from tasks.prediction import sensitivity
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.settings import Settings as PredictSettings
from tasks.report import charts
from tasks.report.baselines import cards, cells
from tasks.report.page import render
from tasks.search.baselines import stage as baselines
from tests.integration.report.test_report_browser import hovered, wait
from tests.integration.report.test_report_dark import CONTRAST, opened_in
from tests.support.report.browser import BROWSER, DRIVER, opened, requests
from tests.support.report.page import Page

PREDICT = PredictSettings(
    validation_images=50,
    recalibration_images=64,
    rounds=1,
    measure=MeasureSettings(warmup_ms=1, min_blocks=1, time_cap_ms=5, patience=0.0),
)
SETTINGS = baselines.BaselineSettings(uniform=True, random=3, macs=True)
HOSTILE = "<img src=x>"
pytestmark = pytest.mark.long
Report = dict[str, Any]


@pytest.fixture(scope="module")
def with_baselines(sources: report.Sources, tmp_path_factory: pytest.TempPathFactory) -> report.Sources:
    chosen, compared = tmp_path_factory.mktemp("chosen"), tmp_path_factory.mktemp("compared")
    (device,) = sources.devices
    data = DataSettings(kind="digits", workers=1)
    searched = search.SearchedSuperNet(
        supernet=sources.supernet,
        accuracy=AccuracyPredictor.load(sources.sensitivities / sensitivity.SENSITIVITIES_FILE),
        images=sensitivity.images_of(PREDICT, data),
    )
    request = baselines.BaselineRequest(
        settings=SETTINGS,
        search=search.Settings(generations=3),
        searched=searched,
        data=data,
        networks=(),
        fronts={device.name: device.search / search.FRONT_FILE},
    )
    baselines.choose(request, chosen, Silent())
    comparison = baselines.ComparisonRequest(supernet=sources.supernet, baselines=chosen, timing=PREDICT)
    with local_agent(backend="onnxruntime") as client, client.lease():
        baselines.compare_on(LeasedDevice(name=device.name, client=client), comparison, compared, Silent())
    return replace(sources, devices=[replace(device, compared=compared)])


@pytest.fixture(scope="module")
def told(with_baselines: report.Sources, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    out = tmp_path_factory.mktemp("told")
    return report.run(with_baselines, report.Settings(), out), out


def test_every_measured_network_is_a_point_with_its_architecture(told: tuple[Report, Path]) -> None:
    (device,) = told[0]["devices"]
    traces = {trace.name: trace for trace in charts.front(device).data}
    rows = device["baselines"]["rows"]
    for name, words in (("uniform", "uniformly shrunk"), ("random", "random SubNets"), ("macs", "searched by MACs")):
        own = [row for row in rows if row["baseline"] == name]
        trace = traces[f"baseline: {words}"]
        assert list(trace.x) == [row["measured_ms"] for row in own]
        assert list(trace.y) == [100 * row["accuracy"]["test"] for row in own]
        assert all(words in text and "resolution" in text for text in trace.text)
        assert trace.meta == device["name"]


def test_labels_of_networks_from_elsewhere_are_escaped(told: tuple[Report, Path]) -> None:
    (device,) = told[0]["devices"]
    found = device["baselines"]
    row = {**found["rows"][0], "baseline": HOSTILE, "name": HOSTILE, "network": "networks/0", "architecture": []}
    names = {**found["baselines"], HOSTILE: found["baselines"]["macs"]}
    other = {**device, "baselines": {**found, "rows": [*found["rows"], row], "baselines": names}}
    trace = charts.front(other).data
    (own,) = [one for one in trace if "img" in (one.name or "")]
    assert "<img" not in own.name + own.text[0]
    page = render({**told[0], "devices": [other]})
    assert HOSTILE in Page(page).words
    assert "img" not in {tag for tag, _ in Page(page).tags}


def test_card_page_and_terminal_tell_the_same(told: tuple[Report, Path]) -> None:
    data, out = told
    (device,) = data["devices"]
    found = device["baselines"]
    share = f"{100 * found['above_every']:.1f} %"
    (card,) = [one for one in data["headline"] if "baseline" in one["label"]]
    assert (card["value"], card["device"]) == (share, device["name"])
    words = Page((out / report.PAGE_FILE).read_text()).words
    stream = StringIO()
    for table in report.terminal_table(data):
        Console(file=stream, width=160).print(table)
    assert f"Above every baseline at {share} of {len(found['budgets'])} budgets" in words
    assert f"above every baseline at {share}" in stream.getvalue()
    for row in found["baselines"].values():
        for key in ("hypervolume", "accuracy", "latency"):
            assert cells(row)[key] in words
            assert cells(row)[key] in stream.getvalue()


def test_a_baseline_that_the_winners_do_not_come_near_is_the_strongest(told: tuple[Report, Path]) -> None:
    (device,) = told[0]["devices"]
    found = device["baselines"]
    ratios = {"unmeasured": None, "near": 0.5, "elsewhere": 0.0, "far": 2.0}
    rows = {name: {**found["baselines"]["macs"], "hypervolume_ratio": ratio} for name, ratio in ratios.items()}
    (card,) = cards({**device, "baselines": {**found, "baselines": rows}})
    assert "the strongest (elsewhere): hypervolume 0.000 ×" in card["note"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with opened(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.mark.skipif(BROWSER is None or DRIVER is None, reason="no browser on this machine")
def test_a_baseline_is_named_where_the_mouse_is(told: tuple[Report, Path], browser: Chrome) -> None:
    browser.get((told[1] / report.PAGE_FILE).as_uri())
    wait(browser, lambda: browser.execute_script("return document.readyState") == "complete")
    (device,) = told[0]["devices"]
    own = [row for row in device["baselines"]["rows"] if row["baseline"] == "macs"]
    slowest = max(range(len(own)), key=lambda at: own[at]["measured_ms"])
    text = hovered(browser, "front-0", "baseline: searched by MACs", slowest)
    assert "MACs" in text
    assert "accuracy" in text
    assert requests(browser) == [(told[1] / report.PAGE_FILE).as_uri()]


@pytest.mark.long
@pytest.mark.skipif(BROWSER is None or DRIVER is None, reason="no browser on this machine")
def test_baselines_stand_out_on_the_dark_page(told: tuple[Report, Path], browser: Chrome) -> None:
    opened_in(browser, "dark", told[1] / report.PAGE_FILE)
    wait(browser, lambda: browser.execute_script("return document.readyState") == "complete")
    points = browser.execute_script(CONTRAST, "#front-0 .scatterlayer path.point")
    assert len(points) > len(told[0]["devices"][0]["baselines"]["rows"])
    assert min(points) >= 3
