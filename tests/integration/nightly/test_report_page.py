"""The page about a run in a real browser: nothing is refused, cut off or on top of something else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.integration.nightly.conftest import keep_picture
from tests.support.paths import EXAMPLES
from tests.support.scripts import Run
from tests.unit.console.made_processes import HOSTILE, START, S, curve, ended, late_ranks, made_run

from monitel.console.job import jobs_of
from monitel.console.page import page
from monitel.runs.curves import STEP_TIME, Curve, Point, read_curves
from monitel.runs.values import RunValues
from monitel.text import number

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

#: Texts that lie over another one in a chart, or outside of the page, the width beyond the screen, and the background.
LAYOUT = """
const places = [...document.querySelectorAll("p, dd, td, span, text, output, pre, h1, h2")].map(
    each => [each, each.getBoundingClientRect()]);
const outside = places.filter(([_, one]) => one.left < 0 || one.right > innerWidth);
const texts = places.filter(([each, _]) => each.tagName === "text");
const pairs = texts.flatMap((one, place) => texts.slice(place + 1).map(other => [one, other]));
const over = pairs.filter(([[_, one], [__, other]]) =>
    one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom);
const wide = document.scrollingElement.scrollWidth - innerWidth, style = getComputedStyle(document.body);
const named = found => found.map(([each, _]) => each.textContent);
return [named(outside), named(over.flat()), wide, style.backgroundColor];
"""


def full_page() -> str:
    """The page of a run with much of everything, and long and hostile names."""
    ranks = late_ranks()
    stack = "Main thread in the last second (most recent call first):\n" + "  File 'train.py', line 1 in step\n" * 30
    ranks[3] = ranks[3].but(status="failed", exception=("ValueError", HOSTILE * 9, "train.py:30"), stacks=stack)
    long = tuple(Point(12_345 * step, step % 9, -1.0, 9.0) for step in range(1, 2001))
    numbers = {"steps": 1.5, "big": 1.25e9, "small": -2.5e-7, "log": 1e5}
    curves = [
        Curve("loss", (), "", long, 1.0),
        *(curve("accuracy", 0.5, 0.75, split=f"{HOSTILE}{each}") for each in range(9)),
        *(curve(name, value, value * 1.3, value / 2000) for name, value in numbers.items()),
        curve("n" * 200, 1.0, last=float("nan")),
        curve("memory", 3e9, 2e9, unit="By"),
        curve("a day", 90_000.0, 4000.0, 60.0, unit="s"),
        *(Curve(f"{each}.{HOSTILE}", (), "", long[: each * 7], 1.0) for each in range(1, 9)),
        Curve(STEP_TIME, (), "s", tuple(Point(step, 0.1, 0.09, 0.12) for step in range(1, 99)), 0.1),
    ]
    values = RunValues(config={f"model.{HOSTILE}.{each}": "value " * 99 for each in range(9)})
    return page(made_run(values=values), jobs_of(ranks), curves, title=HOSTILE, now_ns=START, problems=["x" * 999])


TITLES = ("Healthy", "Where the time went", "Numbers")
#: The texts on the first screen of a page.
FIRST_SCREEN = """
return [...document.querySelectorAll("h2, figcaption, output, dd, figure span")].filter(
    each => each.getBoundingClientRect().bottom < innerHeight).map(each => each.textContent);
"""


def test_first_screen_of_the_demo(browser: Chrome, run: Run, tmp_path: Path) -> None:
    """Verdict, time and loss, with the last value. The picture is kept, in ``build/pictures``."""
    run(EXAMPLES / "train_char_model.py", "--seconds", 15, fresh=True)
    (folder,) = tmp_path.glob("monitel-runs/monitel-demo-*-1")
    (ran,) = (each for each in read_curves((folder / "curves.json").read_bytes()) if each.name == "loss.mean")
    browser.get((folder / "report.html").as_uri())
    shown = browser.execute_script(FIRST_SCREEN)
    assert TITLES == tuple(each for each in shown if each in TITLES)
    assert any(number(ran.last) in each for each in shown)
    assert [] == logged(browser)
    whole = {"width": 1280, "height": 980, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", whole)
    keep_picture(browser, "report.png")


def logged(browser: Chrome) -> list[str]:
    return [each["message"] for each in browser.get_log("browser")]  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize(("scheme", "paper"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(22, 25, 29)")])
def test_page_fits_the_screen(browser: Chrome, tmp_path: Path, width: int, scheme: str, paper: str) -> None:
    killed = ended(0, death="killed by SIGKILL", status="", seen_ns=9 * S)
    pages = {"full": full_page(), "killed": page(None, jobs_of([killed]), [], title="run-7", now_ns=START)}
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    for name, text in pages.items():
        path = tmp_path / f"{name}.html"
        path.write_text(text, encoding="utf-8")
        browser.get(path.as_uri())
        browser.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert [[], [], 0, paper] == browser.execute_script(LAYOUT)
        assert [] == logged(browser)
    browser.get((tmp_path / "full.html").as_uri())
    assert HOSTILE[:60] in browser.title
    assert [] == browser.find_elements("css selector", "script, img")


def test_browser_reports_what_a_page_may_not_do(browser: Chrome, tmp_path: Path) -> None:
    """Otherwise an empty log would show nothing: the same page with a script in it is refused, and logged."""
    path = tmp_path / "page.html"
    path.write_text(full_page().replace("<main>", "<main><script>document.title = 'run'</script>"), encoding="utf-8")
    browser.get(path.as_uri())
    assert "run" != browser.title
    assert any("Content Security Policy" in each for each in logged(browser))
