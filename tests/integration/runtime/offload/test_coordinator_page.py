"""The live page of a SubNet over several devices, in a real browser: plan, links, and changes of plan."""

from pathlib import Path

import pytest
from selenium.webdriver.common.by import By

from adaptive_runtime.offload.split import PLANS_FILE, SplitSubNet
from tests.support.agents.agent_processes import TOKEN as AGENT_TOKEN
from tests.support.links.devices import ServingDevice, inputs
from tests.support.links.plans import SEGMENTS, plans_of
from tests.support.report.browser import BROWSER, DRIVER, opened
from tests.support.runtime.service_process import INFER, TOKEN, body, served, soon

pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="no browser on this machine: apt-get install chromium chromium-driver"
)


@pytest.mark.long
def test_the_page_shows_the_plan_the_links_and_every_change(
    chain: Path, split: SplitSubNet, device: ServingDevice, tmp_path: Path
) -> None:
    folder = tmp_path / "plans"
    folder.mkdir()
    for file in chain.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / PLANS_FILE).write_text(plans_of(split, "a").to_json())
    token = tmp_path / "token"
    token.write_text(AGENT_TOKEN)
    token.chmod(0o600)
    words = ("--device", f"a={device.url}", "--device-token", f"a={token}", "--deadline-ms", "20000")
    (x,) = inputs(split, 1)
    with served(folder, tmp_path / "log", *words) as coordinator, opened(tmp_path / "profile") as browser:
        browser.get(f"{coordinator.url}/#{TOKEN}")
        assert soon(
            lambda: browser.find_element(By.ID, "plan").text.split("\n") == [f"{n} coordinator" for n in range(4)]
        )

        def sent() -> bool:
            coordinator.http.post(INFER, **body(x)).raise_for_status()
            shown = browser.find_element(By.ID, "plan").text.split("\n")
            return shown == [f"{number} a" for number in range(SEGMENTS)]

        assert soon(sent)
        row = browser.find_element(By.ID, "devices").text
        assert row.startswith("a in ")
        assert "Mbit/s" in row
        assert "the coordinator alone" in browser.find_element(By.ID, "predicted").text
        assert "a 0–3" in browser.find_element(By.ID, "decisions").text
