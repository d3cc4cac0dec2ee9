"""The demo's runs in a real TensorBoard in a real browser; the picture of it is kept, and README shows one."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.integration.nightly.conftest import keep_picture
from tests.integration.services import Program, free_port
from tests.support.inbox import DEADLINE
from tests.support.paths import EXAMPLES
from tests.support.scripts import Run

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement


Colour = tuple[int, int, int]
RUNS = {64: 7, 128: 10, 256: 16}  # width of the model, and the seconds in which each takes about as many steps
TAGS = ["loss/mean{split=train}", "loss{split=val}", "model.gradient.norm/mean", "step.time/mean"]
PAGE = "index.html?darkMode=true&tagFilter=loss(.mean)?.split|norm.mean|step.time.mean&smoothing=0#timeseries"
NEAR = 24  # of a colour's 255: curves have soft edges
SETTINGS = """
const named = (kind, text) => [...document.querySelectorAll(kind)].find(each => each.innerText.includes(text));
for (const box of ["Enable step selection", "Ignore outliers"])
    named("mat-checkbox", box).querySelector("input").click();
named("button", "Settings").click();
"""


@pytest.fixture
def tensorboard(run: Run, tmp_path: Path) -> Iterator[str]:
    """The URL of a TensorBoard on three runs of the demo."""
    for hidden, seconds in RUNS.items():
        arguments = ("--hidden", hidden, "--seconds", seconds)
        run(EXAMPLES / "train_char_model.py", *arguments, env={"MONITEL_RUNS_DIR": "runs"}, fresh=True)
    port = free_port()
    command = (sys.executable, "-m", "tensorboard.main", "--logdir", tmp_path / "runs", "--host", "127.0.0.1")
    url = f"http://127.0.0.1:{port}"
    with Program([*command, "--port", port], tmp_path / "tensorboard.log", f"{url}/data/runs"):
        yield url


def found(browser: Chrome, selector: str) -> list[WebElement]:
    return browser.find_elements("css selector", selector)


def shown_tags(browser: Chrome) -> list[str]:
    """The tags of the cards, without the line break at the slash."""
    return ["".join((each.get_attribute("textContent") or "").split()) for each in found(browser, "card-view .tag")]


def drawn(chart: WebElement, colours: list[Colour]) -> bool:
    """Return True if a chart has a curve of each colour that spans at least a quarter of its width."""
    import numpy as np
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(chart.screenshot_as_png)).convert("RGB"), dtype=int)
    columns = [(abs(pixels - colour) < NEAR).all(axis=2).any(axis=0) for colour in colours]
    return all(bool(each.mean() > 1 / 4) for each in columns)


def test_tensorboard_draws_the_demo(browser: Chrome, tensorboard: str) -> None:
    """Each chart has the curve of each run. The picture is kept, in ``build/pictures``."""
    from selenium.webdriver.support.color import Color
    from selenium.webdriver.support.ui import WebDriverWait

    wait = WebDriverWait(browser, DEADLINE)
    browser.get(f"{tensorboard}/{PAGE}")
    wait.until(lambda _: len(found(browser, ".run-color-swatch")) == len(RUNS), "the runs are not shown")
    wait.until(lambda _: found(browser, "line-chart"), "there are no charts")
    browser.execute_script(SETTINGS)
    wait.until(lambda _: TAGS == shown_tags(browser), "there is no card for a tag")
    swatches = found(browser, ".run-color-swatch")
    hexes = [Color.from_string(each.value_of_css_property("background-color")).hex for each in swatches]
    colours = [(int(each[1:3], 16), int(each[3:5], 16), int(each[5:7], 16)) for each in hexes]
    assert len(RUNS) == len(set(colours))
    for tag, chart in zip(TAGS, found(browser, "line-chart .series-view"), strict=True):
        wait.until(lambda _: drawn(chart, colours), f"{tag} is not drawn")  # noqa: B023  called here
    keep_picture(browser, "tensorboard.png")
