"""Prefect's UI in a real browser: the forms of `run`, `adapt` and `nightly`, and the page of a run that a worker has worked."""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from flows.operations.deployments import DEVICES
from tests.support.flows.fixtures import Command
from tests.support.flows.prefect_server import Server, stop, wait_for
from tests.support.flows.tiny import TINY
from tests.support.report.browser import BROWSER, DRIVER, opened

pytestmark = [
    pytest.mark.skipif(
        BROWSER is None or DRIVER is None, reason="no browser on this machine: apt-get install chromium chromium-driver"
    )
]
FORMS = ("autotailor/run", "autotailor-retarget/retarget", "autotailor-nightly/nightly")
GROUPS = ("data", DEVICES, "search", "export", "tracking")
"""Sections that the settings of all three forms have."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with opened(tmp_path_factory.mktemp("profile")) as driver:
        driver.set_window_size(1400, 2000)
        yield driver


def text_of(browser: Chrome) -> str:
    return " ".join(browser.find_element(By.TAG_NAME, "body").text.split())


@pytest.mark.parametrize("name", FORMS)
def test_a_form_shows_each_field_with_its_description_and_the_groups_of_its_settings(
    server: Server, browser: Chrome, name: str
) -> None:
    deployment = server.deployment(name)
    browser.get(f"http://{server.address}/deployments/deployment/{deployment['id']}/run")
    section = "//button[normalize-space()='Settings']"
    wait_for(lambda: browser.find_elements(By.XPATH, section), "the settings of the form")[-1].click()
    wait_for(lambda: all(f" {group} " in text_of(browser) for group in GROUPS), "the groups of the settings")
    shown = text_of(browser)
    for field, schema in deployment["parameter_openapi_schema"]["properties"].items():
        assert schema["title"] in shown, field
        assert " ".join(schema["description"].split()) in shown, field
    if name == "autotailor-nightly/nightly":
        assert " nightly " in shown


@pytest.fixture(scope="module")
def worked(
    server: Server, finished: dict[str, Any], command: Command, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """A night that a worker has worked by its form, in a folder with the finished stages of the shared run."""
    output = tmp_path_factory.mktemp("ui") / "out"
    shutil.copytree(command.output / "stages", output / "stages")
    words = [*TINY, "nightly.operators=3", "nightly.rounds=3"]
    worker = server.start(server.documented("bash", "prefect worker start"))
    try:
        form = {"preset": "none", "overrides": words, "output_dir": str(output)}
        return server.wait_until_ended(server.run_of("autotailor-nightly/nightly", form))
    finally:
        stop(worker)


def test_the_page_of_a_run_shows_its_progress_its_tables_and_the_front(
    server: Server, browser: Chrome, worked: dict[str, Any], finished: dict[str, Any]
) -> None:
    assert worked["state_type"] == "COMPLETED", worked["state"]["message"]
    browser.get(f"http://{server.address}/runs/flow-run/{worked['id']}?tab=Artifacts")
    wait_for(lambda: "Completed" in text_of(browser), "the state of the run")
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for artifact in server.found("artifacts", artifacts={"flow_run_id": {"any_": [worked["id"]]}}):
        by_kind.setdefault(artifact["type"], []).append(artifact)
    assert set(by_kind) >= {"progress", "table", "markdown", "image"}

    def page(artifact: dict[str, Any]) -> str:
        browser.get(f"http://{server.address}/artifacts/artifact/{artifact['id']}")
        return f"http://{server.address}/artifacts/artifact/{artifact['id']}"

    page(by_kind["progress"][0])
    wait_for(lambda: "100%" in text_of(browser), "the progress")
    (table,) = [one for one in by_kind["table"] if one["key"].startswith("winners-") and "export" in one["description"]]
    page(table)
    rows = json.loads(table["data"])
    wait_for(lambda: all(row["measured"] in text_of(browser) for row in rows), "the table of winners")
    (night,) = [one for one in by_kind["markdown"] if one["key"] == "nightly"]
    page(night)
    wait_for(lambda: "nothing to compare with" in text_of(browser), "the summary of the night")
    (front,) = [one for one in by_kind["image"] if one["key"].startswith("front-")]
    page(front)
    drawn = "return [...document.images].some((one) => one.src.startsWith('data:image/png') && one.naturalWidth > 500)"
    wait_for(lambda: browser.execute_script(drawn), "the picture of the front")
