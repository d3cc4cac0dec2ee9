"""Run the tests that execute C code under AddressSanitizer and UndefinedBehaviorSanitizer: ``make sanitize``.

The four distributions are built from a copy of the tree, with assertions and with warnings as errors, in a separate
environment. The sanitizers end a process at the first fault. Reports of AddressSanitizer are printed at the
end; those of UndefinedBehaviorSanitizer are in the stderr of the process, which ``-s -n 0`` shows.

    python3 tests/nightly/sanitizers/run.py [OPTIONS OF PYTEST] [TESTS]
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build" / "sanitized"
TREE = BUILD / "tree"
LOG = BUILD / "build.log"
REPORTS = BUILD / "reports"
PYTHON = BUILD / "venv" / "bin" / "python"
COPIED = ("src", "exporters", "tests", "docs", "compose", "pyproject.toml", "README.md", "LICENSE", "CITATION.cff")
NEEDED = (
    *("pytest", "pytest-xdist", "hypothesis", "numpy", "trustme", "pyyaml"),
    *("opentelemetry-distro", "opentelemetry-instrumentation-system-metrics"),
    *("opentelemetry-exporter-otlp-proto-http", "opentelemetry-configuration"),
)
SANITIZERS = "-fsanitize=address,undefined"  # not bounds-strict: tuples of CPython end with an array of one
WARNINGS = "-Wall -Wextra -Wconversion -Werror"
FLAGS = {
    **os.environ,
    "CFLAGS": f"-O1 -g -fno-omit-frame-pointer -UNDEBUG {WARNINGS} {SANITIZERS} -fno-sanitize-recover=all",
    "LDFLAGS": SANITIZERS,
}

_PROCESSES = ("blackbox", "core", "ledger", "promises")
#: The tests that execute C code; their folders in tests/processes may be emptied.
TESTS = ("tests/unit", *(f"tests/processes/{each}" for each in _PROCESSES))
#: Tests that cannot run here, and why.
LEFT_OUT = {
    "tests/unit/test_docs.py": "runs the examples of the docs, which execute no C code that other tests do not",
    "tests/unit/test_english.py": "reads files of the repository that are not copied",
    "tests/unit/test_public_api.py": "reads such files, too",
    "tests/processes/promises/test_import.py": "measures time",
    "tests/processes/promises/test_crash.py::test_event_has_the_signal_and_the_stacks_of_all_threads[thread of C++]": (
        "forks beside busy threads, one of which may hold a lock of the sanitizer's allocator"
    ),
}
MARKERS = "not python_twin"
#: The system did not give AddressSanitizer memory, or did not take it back: the code under test is not at fault.
OF_THE_SYSTEM = ("AddressSanitizer failed to allocate", "AddressSanitizer failed to deallocate")


def build() -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(TREE, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "build", "*.egg-info")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, TREE / name, ignore=ignored)
        else:
            shutil.copy2(ROOT / name, TREE / name)
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(BUILD / "venv")], check=True, timeout=300)
    packages = (f"{TREE}[top]", *(str(TREE / "exporters" / name) for name in ("otel", "otlp[grpc]", "tensorboard")))
    command = [str(PYTHON), "-m", "pip", "install", "--verbose", "--disable-pip-version-check", *NEEDED, *packages]
    with LOG.open("w", encoding="utf-8") as log:
        for _ in range(2):  # registries fail now and then
            built = subprocess.run(command, check=False, env=FLAGS, stdout=log, stderr=log, timeout=900)
            if built.returncode == 0:
                break
    installed = PYTHON.parents[1].glob("lib/python*/site-packages/monitel/**/*.so")
    missing = {each.stem for each in TREE.glob("src/**/*_c.c")} - {each.name.partition(".")[0] for each in installed}
    if built.returncode or missing:
        sys.exit(f"cannot build {', '.join(sorted(missing)) or 'the distributions'}: see {LOG}")


def preloaded() -> str:
    """Return the libraries that must be loaded before Python is."""
    names = ("libasan.so", "libubsan.so", "libstdc++.so.6")  # the last one, because gRPC throws exceptions
    compiler = os.environ.get("CC", "cc")
    asked = ([compiler, f"-print-file-name={name}"] for name in names)
    return " ".join(
        subprocess.run(each, check=True, capture_output=True, text=True, timeout=60).stdout.strip() for each in asked
    )


def environment() -> dict[str, str]:
    """Return the environment of the tests, which the processes that they start inherit."""
    fatal = ("segv", "sigbus", "abort", "sigill", "sigfpe")  # the tests of crashes need the handlers of monitel
    report = f"log_path={REPORTS}/report:abort_on_error=1"  # pytest would capture stderr
    handlers = ":".join(f"handle_{name}=0" for name in fatal)
    handlers += ":use_sigaltstack=0"  # at the end of a thread it would unmap the stack that faulthandler has allocated
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MONITEL"))},
        "LD_PRELOAD": preloaded(),
        "ASAN_OPTIONS": f"{report}:detect_leaks=0:allow_user_segv_handler=1:{handlers}",
        "UBSAN_OPTIONS": f"{report}:print_stacktrace=1",
        "PYTHONMALLOC": "malloc",  # each object is a block that the sanitizer knows
        "MONITEL_REQUIRE_EXTENSIONS": "1",
    }


def execute(options: list[str]) -> tuple[int, bool]:
    """Run pytest; return its status, and whether its output has a report of UndefinedBehaviorSanitizer."""
    command = [str(PYTHON), "-m", "pytest", "-q", *options]
    undefined = False
    with subprocess.Popen(
        command, env=environment(), cwd=TREE, stdout=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            undefined = undefined or ": runtime error: " in line
            sys.stdout.write(line)
            sys.stdout.flush()
    return process.returncode, undefined


def reports() -> list[str]:
    """Return the reports of AddressSanitizer about the code under test, and print all of them."""
    found = [path.read_text(errors="replace") for path in sorted(REPORTS.iterdir())]
    sys.stderr.write("\n".join(found))
    return [each for each in found if not any(text in each for text in OF_THE_SYSTEM)]


def main(arguments: list[str]) -> int:
    build()
    options = ["-n", "4", "--dist", "worksteal", "-m", MARKERS]
    options += [f"--{'deselect' if '::' in name else 'ignore'}={name}" for name in LEFT_OUT]
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir()
    named = any((TREE / each.partition("::")[0]).exists() for each in arguments)
    tests = () if named else (each for each in TESTS if (TREE / each).is_dir())
    status, undefined = execute([*options, *arguments, *tests])
    return 1 if undefined or reports() else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
