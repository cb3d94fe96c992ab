"""The live page in a real browser: it asks for the token, shows what serves, goes on when that changes, needs no network."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from tests.support.report.browser import BROWSER, DRIVER, opened, requests
from tests.support.runtime.failing_variant import CRASHES_FROM, make_first_fail
from tests.support.runtime.service_process import INFER, TOKEN, Served, body, images, served, soon

pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="no browser on this machine: apt-get install chromium chromium-driver"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with opened(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def service(plain_bundle: Path, tmp_path: Path) -> Iterator[tuple[Served, str, str]]:
    """A service whose first SubNet crashes when it is told to, and the digests of both."""
    folder = Path(shutil.copytree(plain_bundle, tmp_path / "bundle", ignore=shutil.ignore_patterns("prepared")))
    first, second = make_first_fail(folder)
    with served(folder, tmp_path / "log", "--hit-rate") as found:
        yield found, first, second


def fact(browser: Chrome, name: str) -> str:
    """The value of a fact; empty where the page does not show it."""
    found: str = browser.execute_script(
        "return document.querySelector(`[data-fact=\"${arguments[0]}\"] dd`)?.textContent ?? ''", name
    )
    return found


def points(browser: Chrome, chart: str) -> int:
    """How many points a chart has."""
    script = "return (document.getElementById(arguments[0]).data ?? []).reduce((sum, one) => sum + one.x.length, 0)"
    return int(browser.execute_script(script, chart))


@pytest.mark.long
def test_the_page_shows_what_serves_and_follows_it(browser: Chrome, service: tuple[Served, str, str]) -> None:
    running, first, second = service
    running.http.post(INFER, **body(images()))
    browser.get(f"{running.url}/#{TOKEN}")
    assert soon(lambda: fact(browser, "SubNet") == first)
    assert TOKEN not in browser.current_url
    assert soon(lambda: fact(browser, "answered") == "1")
    assert fact(browser, "exit") == "whole"
    assert not browser.find_element(By.ID, "split").is_displayed()
    assert fact(browser, "taken out") == "none"
    assert soon(lambda: points(browser, "latencies") == 1)
    running.http.post(INFER, **body(images(value=CRASHES_FROM)))
    assert soon(lambda: fact(browser, "SubNet") == second)
    assert fact(browser, "taken out") == first
    rows = browser.find_element(By.ID, "decisions").text
    assert "it was taken out" in rows
    assert "it serves first" in rows
    assert soon(lambda: fact(browser, "load").endswith("%") and points(browser, "load") > 0)

    def shows_the_hit_rate() -> bool:
        load = running.state()["load"]
        by = "not sensed" if load["hit_rate"] is None else f"% (by {load['hit_rate_by']})"
        return fact(browser, "cache hits").endswith(by)

    assert soon(shows_the_hit_rate)
    assert all(one.startswith(running.url) for one in requests(browser))
    running.process.kill()
    assert soon(lambda: "no answer" in browser.find_element(By.ID, "status").text)


@pytest.mark.long
def test_answers_over_the_budget_and_past_their_deadlines_are_counted(
    browser: Chrome, service: tuple[Served, str, str]
) -> None:
    running, _, _ = service
    browser.get(f"{running.url}/")
    state = running.state()
    state |= {"answers": [{"latency_ms": ms, "exit": "whole"} for ms in (5.0, 8.0, 12.0)], "outcomes": {"late": 4}}
    counted = []
    for budget_ms in (8.0, 4.0, None):
        state["model"]["budget_ms"] = budget_ms
        shown = browser.execute_script("return facts(arguments[0])", state)
        counted.append((shown["over the budget"], shown["past the deadline"]))
    assert counted == [("1 of the latest 3 (8.00 ms)", "4"), ("3 of the latest 3 (4.00 ms)", "4"), ("no budget", "4")]


def test_without_the_token_the_page_asks_for_it(browser: Chrome, service: tuple[Served, str, str]) -> None:
    running, first, _ = service
    browser.get(f"{running.url}/")
    assert soon(lambda: browser.find_element(By.ID, "token").is_displayed())
    assert first not in browser.page_source
    browser.find_element(By.ID, "token").send_keys("wrong", "\n")
    assert soon(lambda: "asks for its token" in browser.find_element(By.ID, "status").text)
    browser.find_element(By.ID, "token").send_keys(TOKEN, "\n")
    assert soon(lambda: fact(browser, "SubNet") == first)
    assert not browser.find_element(By.ID, "token").is_displayed()
    severe = [row for row in browser.get_log("browser") if row["level"] == "SEVERE" and "401" not in row["message"]]
    assert [row for row in severe if running.url in row["message"]] == []
