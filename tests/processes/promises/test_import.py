"""Importing monitel, and recording without an exporter: nothing foreign is loaded, and one warning is printed."""

import os
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest
from tests.support.scripts import Run

_C = pytest.mark.skipif(
    os.environ.get("MONITEL_REQUIRE_EXTENSIONS") != "1" and find_spec("monitel.stats._window_c") is None,
    reason="monitel was installed without a compiler",
)


def printed(run: Run, script: str, **variables: str) -> str:
    env = {"MONITEL_NO_EXTENSIONS": "0", **variables}
    ended = run("-W", "error", "-c", dedent(script), env=env, fresh=True)
    assert "" == ended.stderr
    return ended.stdout.strip()


def test_import_loads_nothing_foreign(run: Run) -> None:
    """Neither torch, NumPy nor OpenTelemetry, which are installed here; and no slow or large part of the library."""
    script = """
    import sys
    before = {*sys.modules}
    import monitel
    loaded = {name.partition(".")[0] for name in {*sys.modules} - before}
    slow = {"asyncio", "concurrent", "ctypes", "http", "multiprocessing", "socket", "ssl", "urllib.request"}
    slow |= {"monitel.console", "html", "dataclasses", "inspect"}
    print(sorted(loaded - {*sys.stdlib_module_names} - {"monitel"}), sorted(slow & {*sys.modules} - before))
    """
    assert "[] []" == printed(run, script)


def test_pipeline_loads_what_it_needs(run: Run) -> None:
    """The import takes half a second at most: no library for HTTP, no gRPC, no exporter, and not the profiler."""
    pytest.importorskip("monitel_otlp", reason="pip install monitel-otlp")
    script = """
    import sys
    import monitel_otlp
    assert "opentelemetry.sdk" not in sys.modules
    monitel_otlp.configure
    unused = {"requests", "urllib3", "grpc", "tqdm", "monitel.profiler"}
    exporters = {"opentelemetry.exporter.otlp.proto.http", "opentelemetry.exporter.otlp.proto.grpc"}
    print(sorted((unused | exporters) & {*sys.modules}))
    """
    assert "[]" == printed(run, script)


def test_commands_load_nothing_foreign(run: Run, tmp_path: Path) -> None:
    """The commands of monitel itself work without OpenTelemetry, protobuf and entry points, a table without textual.

    The commands of the exporters are part of the help, which loads none of these but entry points.
    """
    script = """
    import sys
    before = {*sys.modules}
    from contextlib import redirect_stderr, redirect_stdout, suppress
    from io import StringIO
    from monitel.console.main import main
    for command in ("top --once", "runs", "autopsy", "ledger", "compare a b"):
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            main(command.split())
    unused = {"opentelemetry", "google", "textual", "rich", "torch", "numpy", "tqdm"}
    print(sorted((unused | {"importlib.metadata"}) & {*sys.modules} - before))
    with suppress(SystemExit):
        main(["--help"])
    print(sorted(unused & {*sys.modules} - before))
    """
    first, *text, last = printed(
        run, script, MONITEL_BLACK_BOX_DIR=f"{tmp_path}", XDG_STATE_HOME=f"{tmp_path}"
    ).splitlines()
    assert ("[]", True, "[]") == (first, "replay" in " ".join(text), last)


def test_import_is_quick(run: Run) -> None:
    """30 ms on an idle machine: the least CPU time of five interpreters is far below 300 ms on any."""
    script = """
    import time
    began = time.process_time()
    import monitel
    print(time.process_time() - began)
    """
    assert min(float(printed(run, script)) for _ in range(5)) < 0.3


_TWIN = "import monitel; print(monitel.Stat.__mro__[1].__module__)"
_NO_EXTENSION = 'import monitel, sys; assert not [name for name in sys.modules if name.endswith("_window_c")]; ' + _TWIN
_MISSING = 'import sys; sys.modules["monitel.stats._window_c"] = None; ' + _TWIN


@pytest.mark.parametrize(
    ("script", "value", "twin"),
    [
        pytest.param(_TWIN, "", "c", marks=_C),
        pytest.param(_TWIN, "0", "c", marks=_C),
        (_NO_EXTENSION, "1", "py"),
        (_MISSING, "0", "py"),
    ],
    ids=["empty", "0", "1", "without a compiler"],
)
def test_window_is_in_c_unless_it_is_missing_or_forbidden(run: Run, script: str, value: str, twin: str) -> None:
    """Wherever the extension was built; with MONITEL_NO_EXTENSIONS=1 no extension is loaded."""
    assert f"monitel.stats._window_{twin}" == printed(run, script, MONITEL_NO_EXTENSIONS=value)


def test_broken_extension_is_an_import_error(run: Run) -> None:
    script = """
    import sys
    class Broken:
        def find_spec(self, name, *_):
            if name == "monitel.stats._window_c":
                raise ImportError("undefined symbol")
    sys.meta_path.insert(0, Broken())
    try:
        import monitel
    except ImportError:
        print("broken")
    """
    assert "broken" == printed(run, script)


@_C
def test_add_stays_in_the_order_of_an_append(run: Run) -> None:
    """Two list.append() calls on an idle machine: at most eight here, of which the Python window needs over twenty.

    Both are measured in turn, a hundred times each, and the fastest rounds are compared, so that load does not matter.
    """
    script = """
    import monitel, time

    def seconds(function, samples=[0.5] * 2000):
        began = time.perf_counter()
        for sample in samples:
            function(sample)
        return time.perf_counter() - began

    stat = monitel.Stat("loss", [monitel.MEAN, monitel.MAX], 1e9)
    rounds = [(seconds(stat.add), seconds([].append)) for _ in range(100)]
    add, append = map(min, zip(*rounds))
    print(add / append, stat.get() and "")
    """
    assert float(printed(run, script)) < 8


WARNING = "log(), emit() and windows go nowhere: this process has no exporter."


def test_modules_are_loaded_where_they_are_used(run: Run) -> None:
    """Without a second import, and not before; a missing package is named, and hasattr() is False."""
    script = """
    import sys
    import monitel
    later = {"torch", "profiler", "integrations"}
    assert later <= {*dir(monitel)}, dir(monitel)
    assert not [name for name in sys.modules if name.split(".")[1:2] and name.split(".")[1] in later]
    assert monitel.profiler.ranges.record_function is monitel.profiler.record_function
    assert {"accelerate", "lightning", "transformers"} <= {*dir(monitel.integrations)}
    assert monitel.clock is sys.modules["monitel.clock"]
    assert not hasattr(monitel, "nothing") and not hasattr(monitel.integrations, "nothing")
    try:
        print(hasattr(monitel, "torch"), monitel.torch.instrument.__name__)
    except AttributeError as error:
        print(error)
    """
    expected = "module 'monitel.torch' cannot be imported: No module named 'torch'"
    found = run("-c", dedent(script), fresh=True).stdout.strip()
    assert (expected if find_spec("torch") is None else "True instrument") == found


FORK = "import os\nif os.fork() == 0:\n    monitel.log(x=1)\n    raise SystemExit\nos.wait()"
SPAWN = """\
import multiprocessing
multiprocessing.get_context("spawn").Process(target=monitel.emit, args=("x",)).start()
"""


#: Six seconds later by its clock, and without the functions of the exit.
LONG = """\
import os, time
monitel.log(loss=0.5)
now = time.monotonic
time.monotonic = lambda: now() + 6
monitel.log(loss=0.5)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("script", "rank", "warnings"),
    [
        ("monitel.log(loss=0.5)", "0", 1),
        ("for n in range(9): monitel.emit('epoch', n=n)", "0", 1),
        ("monitel.stat('loss').add(1)", "0", 1),
        ("monitel.stat('loss').add(1)", "1", 0),
        ("monitel.stat('loss'); monitel.counter('samples').add(); monitel.set_step(1)", "0", 0),
        ("monitel.stat('loss').add(1); monitel.flush(); monitel.stat('loss').get()", "0", 0),
        ("monitel.log(loss=0.5); monitel.register_event_handler(print)", "0", 0),
        (LONG, "0", 1),
        (FORK, "0", 0),
        (SPAWN, "0", 0),
    ],
)
def test_what_goes_nowhere_is_reported_once(run: Run, script: str, rank: str, warnings: int) -> None:
    """At the exit or after seconds, of the first rank; not if an exporter follows, or windows are read."""
    assert warnings == run("-c", f"import monitel\n{script}", fresh=True, env={"RANK": rank}).stderr.count(WARNING)
