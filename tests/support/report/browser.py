"""A real browser without a window, and what it asked the network for."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

BROWSER = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,1000",
)


@contextmanager
def opened(profile: Path) -> Iterator[Chrome]:
    """Chromium with a fresh profile; ends with the block."""
    options = ChromeOptions()
    options.binary_location = BROWSER or ""
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = Chrome(options=options, service=ChromeService(DRIVER))
    try:
        driver.get("about:blank")
        driver.get_log("performance")
        yield driver
    finally:
        driver.quit()


def requests(driver: Chrome) -> list[str]:
    """Addresses of all requests since the last call, data that is in the page itself left out."""
    messages: list[dict[str, Any]] = [json.loads(row["message"])["message"] for row in driver.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if not url.startswith(("data:", "blob:"))]
