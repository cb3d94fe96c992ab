"""The page of nights: what it tells of the latest one, and its trends in a real browser."""

from pathlib import Path

import numpy as np
import pytest

from tasks.operations.nightly.comparison import compare
from tasks.operations.nightly.page import TRENDS, NightReport, change_of, render
from tasks.operations.nightly.records import Finding, Night, Settings, StageChange
from tests.support.nights.made_nights import device, night, nights
from tests.support.report.browser import BROWSER, DRIVER, opened, requests

HOSTILE = "board <b>&</b>"


def report_of(every: list[Night], now: Night) -> NightReport:
    return NightReport(
        night=now,
        comparison=compare(Settings(), every[:-1], every[-2], now),
        changed=["ncnn: version 1.0 → 1.1"],
        stages=[
            StageChange("profile/ncnn", True, ("device ncnn",)),
            StageChange("search/ncnn", False, ("latency/ncnn",)),
        ],
        tables={},
    )


@pytest.fixture(scope="module")
def made() -> tuple[list[Night], str]:
    """Five nights of a device, on the last of which it is slower, and a device with a name that browsers would read."""
    every = nights(5, seed=0, slower={4: {"*": 1.4}})
    rng = np.random.default_rng(1)
    every = [
        night(
            number, {**one.devices, HOSTILE: device(rng, {})}, compared_with=every[number - 1].began if number else None
        )
        for number, one in enumerate(every)
    ]
    findings = compare(Settings(), every[:-1], every[-2], every[-1]).findings
    every[-1] = every[-1].model_copy(update={"findings": findings})
    return every, render(every, report_of(every, every[-1]))


def test_the_page_names_what_got_worse_what_changed_and_what_was_worked_again(made: tuple[list[Night], str]) -> None:
    every, page = made
    assert len(every[-1].findings) > 30
    assert f"The 30 gravest of {len(every[-1].findings)}." in page
    assert change_of(every[-1].findings[0]) in page
    assert "ncnn: version 1.0 → 1.1" in page
    assert "<td>profile/ncnn</td><td>worked again</td><td>device ncnn</td>" in page
    assert "<td>search/ncnn</td><td>found complete</td><td>latency/ncnn</td>" in page


def test_names_of_devices_are_no_html(made: tuple[list[Night], str]) -> None:
    assert HOSTILE not in made[1]
    assert "board &lt;b&gt;" in made[1]


@pytest.mark.parametrize(
    ("unit", "pair", "text"),
    [
        ("ms", (1.0, 1.25), "1 ms → 1.25 ms (1.25 ×)"),
        ("ms", (1.0, None), "1 ms → –"),
        ("area", (0.812, 0.7), "0.812 → 0.700"),
        ("points", (0.5, 2.0), "0.50 points → 2.00 points"),
    ],
)
def test_a_change_is_told_in_its_unit(unit: str, pair: tuple[float, float | None], text: str) -> None:
    content = {"device": "a", "kind": "front", "what": "", "name": "", "unit": unit, "p_value": 0.0}
    assert change_of(Finding.model_validate({**content, "before": pair[0], "now": pair[1]})) == text


@pytest.mark.long
@pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="no browser on this machine: apt-get install chromium chromium-driver"
)
def test_trends_have_a_point_for_each_night_and_device_and_the_page_asks_the_network_for_nothing(
    made: tuple[list[Night], str], tmp_path: Path
) -> None:
    every, page = made
    file = tmp_path / "nights.html"
    file.write_text(page)
    with opened(tmp_path / "profile") as driver:
        driver.get(file.as_uri())
        drawn = driver.execute_script(
            "return [...document.querySelectorAll('.js-plotly-plot')].map("
            "(plot) => [...plot.querySelectorAll('.scatterlayer .trace')].map("
            "(trace) => [...trace.querySelectorAll('path.point')].map((point) => getComputedStyle(point).fill)))"
        )
        assert requests(driver) == [file.as_uri()]
        assert driver.get_log("browser") == []
    assert len(drawn) == len(TRENDS)
    for devices in drawn:
        assert [len(points) for points in devices] == [len(every)] * 2
        changing, still = devices
        assert changing[-1] not in changing[:-1], "the night on which it got worse has a colour of its own"
        assert len(set(still)) == 1
