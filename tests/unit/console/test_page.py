"""The page about a run: its facts, its charts, its advice, and that no text from outside is more than text."""

import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from tests.support.paths import ROOT
from tests.unit.console.made_processes import HOSTILE, JOB, START, S, curve, ended, late_ranks, made_run, totals

from monitel.blackbox.journal import Account
from monitel.console.advice import advice
from monitel.console.charts import in_words
from monitel.console.job import Job, jobs_of
from monitel.console.main import _MODULES
from monitel.console.page import page
from monitel.console.runs import Run, with_loss
from monitel.console.verdict import Verdict
from monitel.runs.curves import STEP_TIME, Curve, Point
from monitel.runs.history import RunTime
from monitel.runs.process import Process, State, Total
from monitel.runs.values import RunValues, Value

pytestmark = pytest.mark.usefixtures("utc")

ELEMENTS = {
    *("html", "head", "meta", "title", "style", "body", "main", "header", "footer", "section", "article"),
    *("h1", "h2", "h3", "p", "b", "small", "span", "dl", "dt", "dd", "div", "ul", "li", "i", "mark", "code", "pre"),
    *("details", "summary", "table", "tr", "th", "td", "figure", "figcaption", "output"),
    *("svg", "line", "text", "path", "rect"),
}


class Page(HTMLParser):
    """A page, parsed. It is well-formed: each element is one of ours, and is closed by its end."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._texts: list[tuple[str, list[str]]] = []
        self._open: list[tuple[str, list[str]]] = []
        text.encode()
        self.text = text
        self.feed(text)
        self.close()
        assert [] == self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ELEMENTS
        assert not any(name.startswith("on") or name in {"src", "href"} for name, _ in attrs)
        self.elements.append((tag, dict(attrs)))
        content: list[str] = []
        self._texts.append((tag, content))
        if tag != "meta":
            self._open.append((tag, content))

    def handle_endtag(self, tag: str) -> None:
        assert tag == self._open.pop()[0]

    def handle_data(self, data: str) -> None:
        assert all(each.isprintable() or each == "\n" for each in data)
        for _, content in self._open:
            content.append(data)

    def texts(self, *tags: str) -> list[str]:
        return ["".join(content) for tag, content in self._texts if tag in tags]

    def values(self, attribute: str, *, of: str) -> list[str]:
        return [str(found[attribute]) for tag, found in self.elements if tag == of and attribute in found]

    def after(self, title: str) -> str:
        return next(text.removeprefix(title) for text in self.texts("section") if text.startswith(title))


def shown(run: Run | None = None, jobs: Sequence[Job] = (), curves: Sequence[Curve] = (), **options: Any) -> Page:
    return Page(page(run, jobs, curves, **{"title": "run-7", "now_ns": START, **options}))


def lines(found: Page) -> list[list[tuple[int, int]]]:
    """The places of each line of all charts, from 0 to 1000, from the left and from above."""
    paths = [each["d"] for tag, each in found.elements if tag == "path" and str(each["class"]).startswith("line")]
    return [places(str(each)) for each in paths]


def places(path: str) -> list[tuple[int, int]]:
    numbers = [int(each) for each in re.findall(r"-?\d+", path)]
    moves = [*zip(numbers[::2], numbers[1::2], strict=False)]
    return [(sum(x for x, _ in moves[: end + 1]), sum(y for _, y in moves[: end + 1])) for end in range(len(moves))]


def test_page_has_the_facts_of_a_run_in_their_order() -> None:
    ranks = late_ranks(step=1203, accounts={"metrics": Account(recorded=300, delivered=300)})
    values = RunValues(
        config={"rate": 0.5, "layers": 12},
        values=(
            Value("tokens", (), "1", 9.0, 0),
            Value("loss", (), "", 2.0, 0),
            Value("training.stage.duration.mean", (("stage", "data"),), "s", 1.0, 0),
        ),
    )
    curves = [
        curve(STEP_TIME, 0.5, 0.125, unit="s"),
        *(curve("accuracy", 0.5, 0.5 + each / 100, split=each) for each in range(8)),
        curve("train.loss", 4.0, 2.0),
    ]
    found = shown(made_run(values=values), jobs_of(ranks), curves, problems=["a file is damaged"])
    assert [
        *("Late rank", "Where the time went", "Numbers", "Stages of a step", "Configuration", "Telemetry", "Problems"),
    ] == found.texts("h2")
    facts = dict(zip(found.texts("dt"), found.texts("dd"), strict=True))
    expected = {"duration": "1 min 40 s", "attempts": "2", "ranks": "4", "last step": "1,203", "speed": "8 steps/s"}
    assert {"started": "2026-01-02 03:04:05", **expected, "goodput": "78 %"} == facts
    assert ["run-7"] == found.texts("h1")
    assert "completed" in found.texts("span")
    assert found.after("Late rank").startswith(
        "Rank 2 takes 30.0 ms longer than the others in data (22 % of each step)Next: Compare its disk"
    )
    assert ["train.loss2", "accuracysplit=00.5", f"{STEP_TIME}125 ms"] == [
        re.sub(r"split=1.*", "", each) for each in found.texts("figcaption")
    ]
    assert ["large"] == found.values("class", of="figure")
    assert "2 more lines" in found.after("Numbers")
    assert ["loss2", "tokens9", "rate0.5", "layers12", "exported1,200 windows and numbers, 0 events"] == found.texts(
        "tr"
    )
    assert "10 % of the time went into starting up." in found.after("Where the time went")
    assert "step78 %1 min 18 sstartup10 %10 sdata10 %10 smy <own>2 %2 s" in found.after("Where the time went")
    assert ["rank 0 ", "rank 1 ", "rank 2 late", "rank 3 "] == [
        each for each in found.texts("span") if each.startswith("rank")
    ]
    assert "rank 2: optimizer 5 ms, other 2 ms, data 40 ms, forward 28 ms, backward 60 ms, sync 0 ms" in found.values(
        "aria-label", of="svg"
    )
    assert "a file is damaged" == found.after("Problems")


def test_page_shows_how_processes_ended() -> None:
    """A stack that is long is folded; processes without details are one line."""
    stack = "\n".join(f'  File "train.py", line {line} in <module>' for line in range(30))
    main = "Main thread in the last second (most recent call first):"
    failed = ended(
        0,
        status="failed",
        step=7,
        exception=("ValueError", "no\nfile", "train.py:30"),
        stacks=f"{main}\n{stack}",
        host="n1",
    )
    killed = ended(1, death="killed by SIGKILL", status="", stacks=f"{main}\n{stack[:50]}", seen_ns=999 * S)
    found = shown(None, jobs_of([failed, killed, *(ended(rank, status="preempted") for rank in (2, 3, 4))]))
    assert ["Rank 1 killed by SIGKILL", "Rank 0 failed at step 7 on n1"] == found.texts("h3")
    assert [f"{main}\n{stack[:50]}", "ValueError: no\nfile", f"{main}\n{stack}"] == found.texts("pre")
    assert ["Stack"] == found.texts("summary")
    assert found.after("How it ended").endswith("Ranks 2-4 preempted")
    assert "killed by SIGKILL" in found.texts("span")
    again = shown(None, jobs_of([killed, *(ended(2, status="preempted", attempt=each) for each in (0, 1))]))
    assert ["Rank 2 preempted in attempt 1", "Rank 2 preempted"] == again.texts("p")[-2:]


def test_run_without_anything_has_a_page() -> None:
    found = shown()
    assert ["run-7", "nothing was recorded"] == [*found.texts("h1"), *found.texts("span")]
    assert [] == found.texts("h2")
    assert ["Unknown"] == shown(made_run({"startup": S}), [Job(JOB, None, ())]).texts("h2")
    assert ["Unknown"] == shown(made_run({}), [Job(JOB, None, ())]).texts("h2")


def test_text_from_outside_is_text() -> None:
    """Everything that a program, a user or a library has named is escaped in the whole page, also in attributes."""
    attributes = ((HOSTILE, HOSTILE),)
    curves = [
        Curve(HOSTILE, attributes, HOSTILE, (Point(1, 1.0, 0.5, 2.0), Point(2, 1.0, 1.0, 1.0)), 1.0) for _ in "12"
    ]
    curves += [Curve(f"{HOSTILE}{each}", attributes, HOSTILE, (), 1.0) for each in range(40)]
    bad = ended(
        None,
        status="failed",
        exception=(HOSTILE, HOSTILE, HOSTILE),
        stacks=f"Main thread (most recent call first):\n{HOSTILE}",
        host=HOSTILE,
        spool=HOSTILE,
        accounts={"logs": Account(1, dropped={HOSTILE: 1})},
        stages=totals({HOSTILE: 5.0, "data": 5.0}, group=HOSTILE),
        made=200,
    )
    run = made_run({HOSTILE: S, "step": S}, values=RunValues(config={HOSTILE: HOSTILE}), outcome=HOSTILE)
    found = shown(run, [Job(JOB, None, (bad,))], curves, title=HOSTILE, problems=[HOSTILE])
    assert 60 < found.text.count("&lt;script&gt;alert(1)")
    assert HOSTILE[:60] in found.texts("title")[0]


@pytest.mark.parametrize(
    ("values", "above", "ticks", "note"),
    [
        ((2.0,), [500], ["step 1", "1", "1.5", "2", "2.5", "3"], ""),  # one point
        ((3e-4, 3e-4, 3e-4), [500, 500, 500], ["0.0002", "0.0003", "0.0004", "step 1", "2", "3"], ""),  # constant
        ((0.0, 1.0), [946, 54], ["0", "0.5", "1", "step 1", "2"], ""),
        ((1e4, 1e-2, 1.0), [16, 984, 661], ["0.01", "1", "100", "10,000", "step 1", "2", "3"], "logarithmic axis"),
        ((-1.0, 1e4), [946, 54], ["0", "5,000", "10,000", "step 1", "2"], ""),  # no logarithm
        ((*[1.0, 2.0] * 60, 500.0), [946, 54], None, "up to 500 near step 121"),  # a rare value far above the others
        ((1.7e308, -1.7e308), [54, 946], ["-1e+300", "0", "1e+300", "step 1", "2"], ""),
        ((5e-324, 0.0), [500, 500], None, ""),
        ((1e-320, 1e308, 1.0), [1000, 0, 484], None, "logarithmic axis"),
        ((*[1.0, 2.0] * 60, 1e-9), [528, 57], None, ""),  # a rare small value makes no logarithmic axis
    ],
)
def test_axis_fits_the_values(values: tuple[float, ...], above: list[int], ticks: list[str] | None, note: str) -> None:
    found = shown(curves=[curve("a", *values)])
    assert above == [y for _, y in lines(found)[0]][: len(above)]
    assert 1 == len([each for each in found.values("class", of="path") if each.startswith("dot")])
    assert ticks is None or sorted(ticks) == sorted(found.texts("text"))
    assert ([note] if note else []) == found.texts("p")


@pytest.mark.parametrize(
    ("unit", "low", "high", "ticks"),
    [
        ("s", 0.1, 0.14, ["100 ms", "120 ms", "140 ms"]),
        ("s", 0.0, 600.0, ["0", "5 min", "10 min"]),
        ("s", 0.0, 864e3, ["0", "5 d", "10 d"]),
        ("By", 0.0, 3 * 2**30, ["0", "1 GiB", "2 GiB", "3 GiB"]),
        ("{token}/s", 0.0, 10.0, ["0", "5", "10"]),
        ("By", -1.7e308, 1.7e308, ["-6.09e+287 TiB", "0", "6.09e+287 TiB"]),
        ("s", 2.301, 2.3035, ["2.301 s", "2.302 s", "2.303 s"]),  # with the digits in which they differ
        ("s", 5e-5, 5.5e-5, ["0.05 ms", "0.052 ms", "0.054 ms"]),
        ("s", 7201.0, 7203.0, ["7,201 s", "7,202 s", "7,203 s"]),
        ("By", 1e9, 1e9 + 5e5, ["953.75 MiB", "954 MiB"]),
        ("{token}", 1e9, 1e9 + 1.5e5, ["1,000,000,000", "1,000,050,000", "1,000,100,000", "1,000,150,000"]),
    ],
)
def test_ticks_are_round_in_their_unit(unit: str, low: float, high: float, ticks: list[str]) -> None:
    found = shown(curves=[curve("a", low, high, unit=unit)])
    assert ticks == [each for each in found.texts("text") if each not in {"step 1", "2"}]


def test_values_and_means_of_a_number_share_a_chart() -> None:
    found = shown(
        curves=[curve("loss", 2.0, split="val"), curve("loss.mean", 3.0, split="train"), curve("a.mean", 4.0)]
    )
    assert ["lossloss split=val2loss.mean split=train3", "a.mean4"] == found.texts("figcaption")
    assert ["large"] == found.values("class", of="figure")
    assert "step 1\nsplit=val 2\nsplit=train 3" in found.texts("title")


def test_number_that_is_not_finite_is_a_mark_with_a_word() -> None:
    found = shown(
        curves=[
            curve("loss", 1.0, 2.0, last=float("nan")),
            curve("b", 1.0, last=float("inf")),
            Curve("c", (), "", (), 1.0),
        ]
    )
    assert ["lossnan", "binf", "c1"] == found.texts("figcaption")
    assert {"then nan", "then inf"} < {*found.texts("text")}
    assert ["bad", "bad"] == found.values("class", of="output")
    assert "no finite number was recorded" in found.after("Numbers")


def test_page_says_which_numbers_are_missing() -> None:
    """Numbers that later steps have replaced, or that are not finite; perhaps the last ones of a killed run."""
    again, run = curve("loss", 3.0, 2.0)._replace(replaced=1200), made_run()
    ended, killed = (shown(of, (), [again]) for of in (run, replace(run, time=replace(run.time, status=""))))
    assert "steps began again: 1,200 earlier points not shown" in ended.after("Numbers")
    gap = curve("loss", 3.0, 2.0)._replace(not_finite=1)
    assert "1 number not shown: nan or infinite" in shown(run, (), [gap]).after("Numbers")
    words = "Numbers are stored each half minute, so those of the last steps may be missing."
    assert [False, True] == [words in found.after("Numbers") for found in (ended, killed)]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(245, "{step}", "245 steps"), (1, "{step}", "1 step"), (2, "{loss}", "2 loss"), (35, "{token}/s", "35 token/s")],
)
def test_values_are_in_words(value: float, unit: str, text: str) -> None:
    assert text == in_words(value, unit)


def test_loss_that_is_not_finite_is_not_called_healthy() -> None:
    run = made_run(values=RunValues(values=(Value("loss.mean", (), "", float("nan"), 0),)))
    found = shown(run, jobs_of([with_loss(ended(0, made=300, step_time=Total(300, 60.0)), run)]))
    assert "Diverged" == found.texts("h2")[0]
    assert "verdict bad" in found.values("class", of="section")
    assert found.after("Diverged").startswith("Loss.mean is nan; 5 steps/sNext: Lower the learning rate")


def test_run_whose_processes_have_ended_is_not_running() -> None:
    """The ledger may be older than the ends, on a busy machine."""
    jobs = jobs_of([ended(0, status="failed")])
    assert "failed" in shown(made_run(outcome="running"), jobs).texts("span")
    assert "running" in shown(made_run(outcome="running"), jobs_of([ended(1)])).texts("span")


def test_neighbours_of_a_long_curve_become_one_point_with_a_band() -> None:
    points = tuple(Point(step, step % 2, -1.0, 2.0) for step in range(1, 2001))
    found = shown(curves=[Curve("loss", (), "", points, 0.0), Curve("b", (), "", points, 0.0)])
    assert [334, 154] == [*map(len, lines(found))]
    assert {500} == {y for _, y in lines(found)[0]}
    bands = [places(str(each["d"])) for _, each in found.elements if each.get("class") == "band c0"]
    assert [(946, 54)] * 2 == [(max(y for _, y in each), min(y for _, y in each)) for each in bands]
    assert "step 42\n0.5 (-1 to 2)" in found.texts("title")


def test_page_of_a_huge_run_is_small() -> None:
    """Each part has a limit: of 10,000 ranks, the one of the verdict and an even choice of the others is shown."""
    many: list[Process] = []
    for rank in range(10_000):
        stages = totals({"data": 40 if rank == 777 else 10, "forward": 60, "sync": 0 if rank == 777 else 30})
        many.append(ended(rank, made=200, stages=stages, step_time=Total(199, 25.0)))
    points = tuple(Point(step, float(step % 7), -1.0, 9.0) for step in range(1, 2001))
    curves = [
        Curve("n'" * 500 + str(name), (("&" * 300, each),), "'" * 300, points, 1.0)
        for name in range(60)
        for each in range(8)
    ]
    values = RunValues(config={"'" * 90 + str(each): "<" * 1000 for each in range(1000)}, left_out=5)
    found = shown(made_run(values=values), jobs_of(many), curves, problems=["'" * 10_000] * 1000)
    assert 500_000 > len(found.text.encode())
    assert "32 of 10,000 ranks: an even choice, and the one of the verdict" in found.after("Stages of a step")
    bars = [each for each in found.texts("span") if each.startswith("rank ")]
    assert (32, "rank 0 ", "rank 777 late", "rank 9677 ") == (len(bars), bars[0], bars[3], bars[-1])
    killed = [
        ended(rank, death="killed by SIGKILL", stacks='Main "\n' + '"' * 999 + "\n&" * 99_999) for rank in range(99)
    ]
    found = shown(made_run(values=values), jobs_of(killed), curves)
    assert 500_000 > len(found.text.encode())
    assert "more processes" in found.after("How it ended")


def test_each_kind_of_verdict_has_advice_whose_command_exists() -> None:
    kinds = re.findall(r"^\| \[`([\w-]+)`\]", (ROOT / "docs/reference/verdicts.md").read_text("utf-8"), re.MULTILINE)
    assert 15 == len(kinds)
    job = Job(JOB, None, (ended(1, state=State.ALIVE, status=""), ended(2, death="killed by SIGKILL", spool="/")))
    found = {}
    for kind in kinds:
        vars(job)["verdict"] = Verdict(kind, f"{kind}: it is so", rank=1, stage="data")
        found[kind], command = advice(job, None)
        assert not command or command.split()[:2] in [["monitel", each] for each in ("run", *_MODULES)]
        assert "monitel autopsy /" == command or kind != "dead"
        assert "monitel autopsy 101" == command or kind != "stuck"
    assert len({*kinds}) == len({*found.values()})
    vars(job)["verdict"] = Verdict("healthy", "healthy: 8 steps/s")
    short, long = (RunTime("run-7", {"step": 6 * each * S, "down": 4 * each * S}, 2, START) for each in (10, 20))
    assert (found["healthy"], "monitel runs") == advice(job, short)
    text = "40 % of the time went into downtime between attempts"
    assert (f"The steps are fine, but {text}: automatic restarts, or spare nodes.", "") == advice(job, long)
    late = Job(JOB, None, (ended(state=State.ALIVE, status="", made=99, step_age_ns=9 * S, step_p50=0.25),))
    vars(late)["verdict"] = Verdict("healthy", "healthy: no step for 9 s")
    assert "Look again in a minute" in advice(late, None)[0]
    assert "No step for 9 s" == shown(None, [late]).texts("h2")[0]
    few = ended(made=5, step=5)
    assert "too short for a verdict" in advice(Job(JOB, None, (few,)), None)[0]
    assert "look again later" in advice(Job(JOB, None, (replace(few, state=State.ALIVE, status=""),)), None)[0]
    ranks = Job(JOB, None, (ended(0, made=99), ended(1, made=99)))
    assert "unknown" == ranks.verdict.kind
    assert "line above says what is missing" in advice(ranks, None)[0]
