"""Draw panels of the dashboard "Who holds the job up" from the answers of a Prometheus.

The picture docs/pictures/slow-rank.svg was made by

    make stack-up
    export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318
    export OTEL_RESOURCE_ATTRIBUTES=training.run.id=healthy
    torchrun --nproc-per-node 4 docs/examples/train_ddp.py --steps 1300
    export OTEL_RESOURCE_ATTRIBUTES=training.run.id=late
    torchrun --nproc-per-node 4 docs/examples/train_ddp.py --steps 1300 --late data:2:30ms
    python tools/slow_rank_picture.py http://127.0.0.1:9090 docs/pictures/slow-rank.svg

The queries are those of the dashboard's file; this script draws their answers, not Grafana.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BOARD = Path(__file__).parents[1] / "compose" / "grafana" / "dashboards" / "monitel-ranks.json"
ROOT = (
    "role='img' aria-labelledby='title description' font-family='system-ui, sans-serif' font-size='14' fill='#102027'"
)
COLOURS = {
    "optimizer": "#b39ddb",
    "other": "#bcaaa4",
    "data": "#ffb74d",
    "forward": "#81c784",
    "backward": "#64b5f6",
    "sync": "#cfd8dc",
}  # in the order of a cycle
LINES = ("#e65100", "#1565c0", "#2e7d32", "#6a1b9a", "#5d4037")
WIDTH, LEFT, RIGHT = 960, 132, 916  # of the picture, and of its charts
BAR, CHART = 44, 170  # pixels
NAMED = 24  # pixels of a bar that have room for a number


@dataclass(frozen=True)
class Run:
    """A group of ranks of a run: the seconds of each stage in the middle of its time, and its time."""

    name: str
    exposed: Mapping[str, float]
    begin: float
    end: float


@dataclass(frozen=True)
class Suspect:
    """A late rank: its name, and its lateness in seconds over time."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Store:
    """A Prometheus, and the service that it is asked about."""

    url: str
    service: str

    def query(self, expression: str, at: float, **times: float) -> list[dict[str, Any]]:
        """Return the result of a query, for one time or from ``start`` to ``at``."""
        asked: dict[str, Any] = {"query": expression, **({**times, "end": at} if times else {"time": at})}
        path = f"{self.url}/api/v1/query{'_range' if times else ''}?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(path, timeout=60) as answer:  # noqa: S310  main() checks the URL
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found

    def panel(self, title: str, seconds: int) -> str:
        """Return the first query of a panel, with all that can be chosen chosen."""
        (panel,) = (each for each in json.loads(BOARD.read_text())["panels"] if each["title"] == title)
        chosen = {"service": self.service, "__range": f"{seconds}s"}
        text: str = panel["targets"][0]["expr"]
        return re.sub(r"\$\{?(\w+)\}?", lambda found: chosen.get(found[1], ".*"), text)

    def runs(self, now: float, seconds: int) -> list[Run]:
        """Return each group of each run, in the order in which they began."""
        windows = f'timestamp(training_stage_duration_mean_seconds{{service_name="{self.service}"}})[{seconds}s:1s]'
        (begins, ends) = (
            {each["metric"].get("training_run_id", ""): float(each["value"][1]) for each in self.query(of, now)}
            for of in (f"{how} by (training_run_id) ({how}_over_time({windows}))" for how in ("min", "max"))
        )
        found: dict[str, dict[str, float]] = {}
        times = {}
        for run, begin in sorted(begins.items(), key=lambda item: item[1]):
            for each in self.query(self.panel("Exposed time per stage", seconds), (begin + ends[run]) / 2):
                metric = each["metric"]
                if metric.get("training_run_id", "") == run:
                    name = " ".join(filter(None, (run, metric.get("training_group"))))
                    found.setdefault(name, {})[metric["training_stage"]] = float(each["value"][1])
                    times[name] = begin, ends[run]
        return [Run(name, exposed, *times[name]) for name, exposed in found.items()]

    def suspects(self, begin: float, end: float) -> list[Suspect]:
        """Return each suspect in a time, the latest first."""
        labels = ("training_run_id", "training_group", "training_stage")
        found = []
        for each in self.query(self.panel("Suspects over time", int(end - begin) + 1), end, start=begin, step=5):
            metric = each["metric"]
            run, group, stage = (metric.get(label, "") for label in labels)
            rank = f"rank {metric.get('training_rank', '')} on {metric.get('host_name', '')}"
            of_run = " ".join(filter(None, (run, group)))
            name = f"{rank} is late in {stage}"
            found.append(
                Suspect(f"{of_run}: {name}" if of_run else name, [(at, float(value)) for at, value in each["values"]])
            )
        return sorted(found, key=lambda suspect: suspect.points[-1][1], reverse=True)


def time_of(runs: Sequence[Run]) -> tuple[float, float]:
    """Return the begin of the first run and the end of the last one."""
    return min(each.begin for each in runs), max(each.end for each in runs)


def draw(runs: Sequence[Run], suspects: Sequence[Suspect]) -> str:
    """Return the picture as SVG."""
    top = 100
    chart = top + len(runs) * (BAR + 14) + 70
    height = chart + CHART + 84
    names = "; ".join(f"{each.name} by {1e3 * each.points[-1][1]:.1f} ms" for each in suspects) or "none"
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' {ROOT}>",
            "<title id='title'>Exposed time per stage, and suspects over time</title>",
            f"<desc id='description'>Suspects at the end: {escape(names)}.</desc>",
            f"<rect width='{WIDTH}' height='{height}' rx='10' fill='#fafbfc'/>",
            _text(24, 34, "Exposed time per stage, in ms", "font-weight='600' font-size='16'"),
            *_legend(60),
            *_bars(runs, top),
            _text(24, chart - 22, "Suspects over time, in ms per step", "font-weight='600' font-size='16'"),
            *_curves(runs, suspects, chart),
            _text(
                24,
                height - 16,
                "Answers of a Prometheus to the queries of the dashboard, drawn by tools/slow_rank_picture.py.",
                "font-size='12' fill='#607d8b'",
            ),
            "</svg>\n",
        ]
    )


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' {style}>{escape(text)}</text>"


def _legend(y: int) -> Iterator[str]:
    x = LEFT
    for stage, colour in COLOURS.items():
        yield f"<rect x='{x}' y='{y - 12}' width='14' height='14' rx='2' fill='{colour}'/>"
        yield _text(x + 20, y, stage)
        x += 50 + 8 * len(stage)


def _bars(runs: Sequence[Run], top: int) -> Iterator[str]:
    """Return a bar for each run, as long as its cycle."""
    longest = max((sum(each.exposed.values()) for each in runs), default=1)
    scale = (RIGHT - 70 - LEFT) / longest
    for row, each in enumerate(runs):
        x, y = float(LEFT), top + row * (BAR + 14)
        yield _text(LEFT - 12, y + BAR / 2 + 5, each.name, "text-anchor='end' font-weight='600'")
        for stage, colour in COLOURS.items():
            seconds = each.exposed.get(stage, 0.0)
            width = seconds * scale
            yield (
                f"<rect x='{x:.1f}' y='{y}' width='{width:.1f}' height='{BAR}' fill='{colour}' stroke='#fafbfc'>"
                f"<title>{escape(each.name)}: {stage} {1e3 * seconds:.1f} ms</title></rect>"
            )
            if width > NAMED:
                yield _text(x + width / 2, y + BAR / 2 + 5, f"{1e3 * seconds:.1f}", "text-anchor='middle'")
            x += width
        yield _text(x + 8, y + BAR / 2 + 5, f"{1e3 * sum(each.exposed.values()):.1f}", "font-weight='600'")


def _curves(runs: Sequence[Run], suspects: Sequence[Suspect], top: int) -> Iterator[str]:
    """Return a chart with a curve for each suspect, and the time of each run."""
    begin, end = time_of(runs)
    highest = max((value for each in suspects for _, value in each.points), default=0.01)
    tick = next(tick for tick in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5) if highest < 5 * tick)

    def x(at: float) -> float:
        return LEFT + (RIGHT - LEFT) * (at - begin) / max(end - begin, 1)

    def y(seconds: float) -> float:
        return top + CHART * (1 - seconds / (5 * tick))

    for name, from_, to in dict.fromkeys((each.name.split(" ")[0], each.begin, each.end) for each in runs):
        yield f"<rect x='{x(from_):.1f}' y='{top}' width='{x(to) - x(from_):.1f}' height='{CHART}' fill='#eceff1'/>"
        yield _text((x(from_) + x(to)) / 2, top + CHART + 40, name, "text-anchor='middle' font-weight='600'")
    for number in range(6):
        at = y(number * tick)
        yield f"<line x1='{LEFT}' x2='{RIGHT}' y1='{at:.1f}' y2='{at:.1f}' stroke='#cfd8dc'/>"
        yield _text(LEFT - 12, at + 5, f"{1e3 * number * tick:g}", "text-anchor='end' font-size='12'")
    for minute in range(int((end - begin) / 60) + 1):
        style = "text-anchor='middle' font-size='12'"
        yield _text(x(begin + 60 * minute), top + CHART + 20, f"{minute} min" if minute else "0", style)
    for each, colour in zip(suspects, LINES, strict=False):
        points = [(x(at), y(value)) for at, value in each.points]
        line = " ".join(f"{across:.1f},{down:.1f}" for across, down in points)
        yield f"<polyline points='{line}' fill='none' stroke='{colour}' stroke-width='2.5'/>"
        style = f"text-anchor='end' font-weight='600' fill='{colour}'"
        highest_point = min(down for _, down in points)
        yield _text(points[-1][0] - 6, highest_point - 8, f"{each.name}: {1e3 * each.points[-1][1]:.1f}", style)


def main() -> None:
    """Ask and draw."""
    parser = argparse.ArgumentParser(description="Draw who holds the job up, from the answers of a Prometheus.")
    parser.add_argument("url", help="of Prometheus")
    parser.add_argument("picture", type=Path, help="the SVG file to write")
    parser.add_argument("--service", default="train-ddp", help="service.name of the job (%(default)s)")
    parser.add_argument("--minutes", type=int, default=20, help="time to look back (%(default)s)")
    arguments = parser.parse_args()
    if not arguments.url.startswith(("http://", "https://")):
        parser.error(f"expected a URL, e.g. http://127.0.0.1:9090, got {arguments.url!r}")
    store, now, seconds = Store(arguments.url, arguments.service), time.time(), 60 * arguments.minutes
    runs = store.runs(now, seconds)
    if not runs:
        parser.exit(1, f"no run of {arguments.service} recorded stages within {arguments.minutes} minutes\n")
    arguments.picture.write_text(draw(runs, store.suspects(*time_of(runs))))


if __name__ == "__main__":
    main()
