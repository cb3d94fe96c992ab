"""The report where the reader prefers dark pages: texts and points stand out from what is behind them, in charts, too."""

from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome

from tasks.report import PAGE_FILE
from tests.support.report.browser import BROWSER, DRIVER, opened

CONTRAST = """
const parts = (text) => text.match(/[\\d.]+/g).map(Number);
const light = (rgb) => {
  const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const back = parts(getComputedStyle(document.querySelector("section:not(.cards)")).backgroundColor).slice(0, 3);
return [...document.querySelectorAll(arguments[0])].map((one) => {
  const style = getComputedStyle(one), color = parts(style.fill === "none" ? style.stroke : style.fill);
  const alpha = Number(style.opacity) * Number(style.fillOpacity) * (color[3] ?? 1);
  const mixed = back.map((value, at) => alpha * color[at] + (1 - alpha) * value);
  const [a, b] = [light(mixed), light(back)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
});
"""
"""Contrast of each element with the section behind it, as WCAG 2.1 defines it."""

pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="no browser on this machine: apt-get install chromium chromium-driver"
)


def opened_in(driver: Chrome, scheme: str, page: Path) -> str:
    """Background of the page in a colour scheme."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.get(page.as_uri())
    found: str = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    return found


@pytest.mark.long
def test_charts_of_the_dark_page_can_be_read(made: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    page = made[1] / PAGE_FILE
    with opened(tmp_path / "profile") as driver:
        assert opened_in(driver, "light", page) == "rgb(244, 245, 247)"
        light = driver.execute_script(CONTRAST, "#front-0 .xtick text")
        assert opened_in(driver, "dark", page) == "rgb(20, 23, 27)"
        texts = driver.execute_script(CONTRAST, ".xtick text, .ytick text, .legendtext, .xtitle, .ytitle")
        points = driver.execute_script(CONTRAST, "#front-0 .scatterlayer path.point")
        icons = driver.execute_script(CONTRAST, ".modebar-btn .icon path")
    assert len(texts) > 20
    assert min(*texts, *light) >= 4.5
    assert len(points) > 5
    assert min(points) >= 3
    assert icons
    assert min(icons) >= 3
