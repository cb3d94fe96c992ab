"""The report in a real browser: points, hover, the filter by device, the layers of a chosen SubNet, no network."""

import copy
import functools
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

from tasks.report.headline import headline
from tasks.report.page import render
from tests.support.report.browser import BROWSER, DRIVER, opened, requests

Report = dict[str, Any]
OTHER = "far & <b>away</b>"
WAIT_S = 120

pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="no browser on this machine: apt-get install chromium chromium-driver"
)


@pytest.fixture(scope="module")
def both(made: tuple[Report, Path]) -> Report:
    """The report of the run with a second device, on which everything takes twice as long."""
    data = copy.deepcopy(made[0])
    other = copy.deepcopy(data["devices"][0])
    other["name"] = OTHER
    for row in (other["base"], *other["winners"], *other["baseline"], *other["random"]):
        row["measured_ms"] *= 2
    data["devices"].append(other)
    data["headline"] = headline(data, 3.0)
    return data


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with opened(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def page(browser: Chrome, both: Report, tmp_path: Path) -> Chrome:
    """The page, opened anew and drawn."""
    file = tmp_path / "report.html"
    file.write_text(render(both))
    browser.get(file.as_uri())
    wait(browser, lambda: browser.execute_script("return document.readyState") == "complete")
    return browser


def wait(browser: Chrome, condition: Callable[[], Any]) -> Any:
    """What the condition gives once it is true; fails after `WAIT_S`."""
    return WebDriverWait(browser, WAIT_S, 0.05).until(lambda _: condition())


def spot(browser: Chrome, figure: str, trace: str, point: int) -> tuple[int, int]:
    """Where a point of a figure is in the window, scrolled there."""
    x, y = browser.execute_script(
        """
        const gd = document.getElementById(arguments[0]);
        gd.scrollIntoView({ block: "center", behavior: "instant" });
        const trace = gd.data.find((one) => one.name === arguments[1]);
        const { xaxis, yaxis } = gd._fullLayout, box = gd.getBoundingClientRect();
        return [box.left + xaxis._offset + xaxis.d2p(trace.x[arguments[2]]),
                box.top + yaxis._offset + yaxis.d2p(trace.y[arguments[2]])];
        """,
        figure, trace, point,
    )  # fmt: skip
    return round(x), round(y)


def hovered(browser: Chrome, figure: str, trace: str, point: int) -> str:
    """The label that a real movement of the mouse to a point shows."""
    x, y = spot(browser, figure, trace, point)
    mouse = ActionChains(browser, duration=0)
    mouse.w3c_actions.pointer_action.move_to_location(x - 3, y)
    mouse.w3c_actions.pointer_action.move_to_location(x, y)
    mouse.perform()
    text: str = wait(
        browser,
        lambda: browser.execute_script(
            "return [...document.querySelectorAll(`#${arguments[0]} .hoverlayer .hovertext tspan.line,"
            " #${arguments[0]} .hoverlayer .hovertext text.nums`)].map((one) => one.textContent).join('\\n')",
            figure,
        ),
    )
    return text


def bars(browser: Chrome, number: int) -> dict[str, float]:
    """Sum of the bars of each kind of operator in the chart of layers [ms]."""
    script = (
        "return document.getElementById(arguments[0]).data.map((t) => [t.name, t.type, t.y.reduce((a, b) => a + b, 0)])"
    )
    rows = browser.execute_script(script, f"layers-{number}")
    return {name: total for name, kind, total in rows if kind == "bar"}


def sum_of_layers(report: Report, number: int, digest: str) -> float:
    found = report["devices"][number]["breakdown"]
    layers = found["subnets"][digest]["layers"]
    return sum(found["operators"][operator]["predicted_ms"] for _, operator in layers)


def show_alone(browser: Chrome, figure: str, trace: str) -> None:
    """Hide the other points of a chart: they may lie where the mouse goes."""
    browser.execute_script(
        "const chart = document.getElementById(arguments[0]);"
        "const others = [...chart.data.keys()].filter((index) => chart.data[index].name !== arguments[1]);"
        "return Plotly.restyle(chart, {visible: false}, others).then(() => null);",
        figure,
        trace,
    )


def front_row(report: Report, number: int, point: int) -> Report:
    """The winner that is a point of the front's line."""
    rows = {row["digest"]: row for row in report["devices"][number]["winners"] if row["on_front"]}
    return sorted(rows.values(), key=lambda row: row["measured_ms"])[point]


def test_the_page_asks_the_network_for_nothing_and_has_no_errors(page: Chrome, both: Report, tmp_path: Path) -> None:
    hovered(page, "front-0", "winners", 0)
    page.find_elements(By.CSS_SELECTOR, "nav.filter button")[1].click()
    page.find_elements(By.CSS_SELECTOR, "#subnet-0 .switch button")[2].click()
    assert requests(page) == [(tmp_path / "report.html").as_uri()]
    assert page.get_log("browser") == []


def test_a_request_would_be_noticed_and_the_page_may_not_make_one(page: Chrome, tmp_path: Path) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}/report.html"
    try:
        requests(page)
        blocked = page.execute_async_script(
            "const done = arguments[1]; fetch(arguments[0]).then(() => done(false), () => done(true));", address
        )
        assert blocked
        page.get(address)
        assert address in requests(page)
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.long
def test_every_point_of_every_device_is_drawn(page: Chrome, both: Report) -> None:
    for number, device in enumerate(both["devices"]):
        drawn = page.execute_script(
            "const gd = document.getElementById(arguments[0]); const marks = gd.querySelectorAll('.scatterlayer .trace');"
            "return Object.fromEntries(gd.data.map((t, at) => [t.name, marks[at].querySelectorAll('path.point').length]))",
            f"front-{number}",
        )
        winners = {row["digest"]: row["on_front"] for row in device["winners"]}
        assert drawn["winners"] == sum(winners.values()) > 0
        assert drawn["base model"] == 1
        assert sum(n for name, n in drawn.items() if name.startswith("uniformly")) == len(device["baseline"])


@pytest.mark.long
def test_hover_on_the_front_shows_budget_accuracy_and_architecture(page: Chrome, both: Report) -> None:
    for number in (0, 1):
        row = front_row(both, number, -1)
        point = len({r["digest"] for r in both["devices"][number]["winners"] if r["on_front"]}) - 1
        show_alone(page, f"front-{number}", "winners")
        text = hovered(page, f"front-{number}", "winners", point)
        assert f"accuracy {100 * row['accuracy']:.1f} %" in text
        for line in both["devices"][number]["breakdown"]["subnets"][row["digest"]]["architecture"]:
            assert line in text


@pytest.mark.long
def test_the_filter_shows_one_device(page: Chrome, both: Report) -> None:
    def shown() -> list[str]:
        parts = page.find_elements(By.CSS_SELECTOR, "section[data-of]")
        return [part.get_attribute("data-of") or "" for part in parts if part.is_displayed()]

    def visible_fronts() -> set[str]:
        script = "return document.getElementById('fronts')._fullData.filter((t) => t.visible).map((t) => t.meta)"
        return set(page.execute_script(script))

    def shows_only(name: str) -> bool:
        return visible_fronts() == {name}

    names = [device["name"] for device in both["devices"]]
    everything, *buttons = page.find_elements(By.CSS_SELECTOR, "nav.filter button")
    assert [button.text for button in buttons] == names
    assert shown() == names
    for name, button in zip(names, buttons, strict=True):
        button.click()
        assert shown() == [name]
        assert wait(page, functools.partial(shows_only, name))
        cards = page.find_elements(By.CSS_SELECTOR, ".card[data-of]")
        assert {card.get_attribute("data-of") for card in cards if card.is_displayed()} == {name}
    everything.click()
    assert shown() == names
    assert wait(page, lambda: visible_fronts() == set(names))


@pytest.mark.long
def test_a_click_on_a_point_shows_its_layers(page: Chrome, both: Report) -> None:
    row = front_row(both, 1, 0)
    Select(page.find_element(By.CSS_SELECTOR, "#subnet-1 select.shown")).select_by_value(
        both["devices"][1]["base"]["digest"]
    )
    show_alone(page, "front-1", "winners")
    hovered(page, "front-1", "winners", 0)  # the chart takes a click for the point whose label it shows
    ActionChains(page, duration=0).click().perform()
    chosen = page.find_element(By.CSS_SELECTOR, "#subnet-1 select.shown")
    wait(page, lambda: chosen.get_property("value") == row["digest"])
    assert sum(bars(page, 1).values()) == pytest.approx(sum_of_layers(both, 1, row["digest"]), rel=1e-5)
    marked = page.execute_script("return document.getElementById('front-1').data.at(-1).x")
    assert row["measured_ms"] in marked


def test_any_subnet_can_be_chosen_compared_and_grouped(page: Chrome, both: Report) -> None:
    device = both["devices"][0]
    found = device["breakdown"]
    first, second = device["base"]["digest"], device["winners"][0]["digest"]
    Select(page.find_element(By.CSS_SELECTOR, "#subnet-0 select.shown")).select_by_value(first)
    Select(page.find_element(By.CSS_SELECTOR, "#subnet-0 select.against")).select_by_value(second)
    families: dict[str, float] = {}
    for _, operator in found["subnets"][first]["layers"]:
        one = found["operators"][operator]
        families[one["family"]] = families.get(one["family"], 0.0) + one["predicted_ms"]
    by_layer, by_block, by_operator = page.find_elements(By.CSS_SELECTOR, "#subnet-0 .switch button")
    sizes = {by_layer: len(found["layers"]), by_block: len({one["place"] for one in found["layers"]}),
             by_operator: len(families)}  # fmt: skip
    for button, size in sizes.items():
        button.click()
        assert bars(page, 0) == pytest.approx(families, rel=1e-5)
        script = "return document.getElementById('layers-0').data"
        traces = page.execute_script(script)
        assert len({name for trace in traces if trace["type"] == "bar" for name in trace["x"]}) == size
        other = next(trace for trace in traces if trace["type"] == "scatter")
        assert sum(other["y"]) == pytest.approx(sum_of_layers(both, 0, second), rel=1e-5)
    rows = page.find_elements(By.CSS_SELECTOR, "#subnet-0 table.sections tbody tr")
    names = [section["name"] for section in found["subnets"][first]["sections"]]
    assert [row.find_elements(By.TAG_NAME, "td")[0].text for row in rows] == names
    assert all(row.find_element(By.CLASS_NAME, "share").size["width"] > 0 for row in rows)


def test_squares_of_a_confusion_matrix_have_their_numbers_and_names_stay_texts(page: Chrome, both: Report) -> None:
    shown = page.execute_script(
        "const at = document.getElementById('confusions-0');"
        "return [...at.querySelectorAll('.heatmap-label text')].map((one) => one.textContent)"
    )
    counts = [str(count) for row in both["confusions"][0]["confusion"] for count in row if count]
    assert sorted(filter(None, shown)) == sorted(counts)
    names = page.execute_script(
        "return [...document.querySelectorAll('#confusions-0 .ytick text')].map((one) => one.textContent)"
    )
    assert sorted(names) == both["confusions"][0]["classes"]
