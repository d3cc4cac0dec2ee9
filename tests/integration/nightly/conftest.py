"""Debian's Chromium with the driver that Debian builds from the same source, and the pictures of what it shows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.inbox import DEADLINE
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,986"),
)
PICTURES = ROOT / "build" / "pictures"
MOST_BYTES = 100_000  # of a picture: README shows it


def keep_picture(browser: Chrome, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    assert browser.save_screenshot(str(PICTURES / name))
    assert MOST_BYTES > (PICTURES / name).stat().st_size


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("no browser: apt-get install chromium chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium: pip install -r requirements-dev.txt")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as browser:
        browser.set_page_load_timeout(DEADLINE)
        yield browser
