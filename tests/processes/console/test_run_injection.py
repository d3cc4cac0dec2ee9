"""The sitecustomize module of ``monitel run``: every Python on the path works as without it."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes.console.commands import RUN, both, check_same, outcome
from tests.support.checks import SetEnv

from monitel_run.command import INJECTED

PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
OTHERS = sorted({str(path) for path in [*PYENV.glob("*/bin/python"), Path("/usr/bin/python3")] if path.exists()})

#: Prints everything that a program can see of sitecustomize.
SEEN = """\
import sys
print(sys.path, [type(finder).__name__ for finder in sys.meta_path if "Watch" not in repr(finder)])
print("sitecustomize" in sys.modules and sys.modules["sitecustomize"].__file__)
try:
    import sitecustomize
    print(sitecustomize.__file__)
except ImportError as error:
    print("none")
"""
#: Prints if the process has been recorded, for a module that only looks like torch.
RECORDED = """\
import os, sys, torch
print("monitel_otlp.configuration" in sys.modules, flush=True)
"""


@pytest.fixture(autouse=True)
def like_torch(tmp_path: Path, setenv: SetEnv) -> Iterator[Path]:
    """A package that has only the name of torch, which is fast to import; and a spool outside of the folder."""
    folder = tmp_path / "packages"
    for name in ("torch", "torch/utils", "torch/distributed"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("")
    for name in ("torch/utils/collect_env", "torch/distributed/run", "torch/distributed/worker"):
        (folder / f"{name}.py").write_text(RECORDED)
    setenv(PYTHONPATH=str(folder), MONITEL_SPOOL_DIR=str(tmp_path / "spool"), MONITEL_BLACK_BOX="0")
    yield folder
    assert not (tmp_path / "state/monitel").exists()


@pytest.mark.parametrize("python", [sys.executable, *OTHERS])
def test_other_interpreters_print_nothing(python: str) -> None:
    """Neither do interpreters without monitel that import a torch, nor those that are too old for monitel."""
    ended = check_same([python, "-c", f"{SEEN}import torch"], env={**os.environ, "OTEL_SDK_DISABLED": "true"})
    assert (0, "") == (ended.status, ended.stderr)


@pytest.mark.parametrize("value", [None, "", ":a"])
def test_search_path_is_that_of_the_user(value: str | None) -> None:
    """``sys.path`` is the same with each form of PYTHONPATH, also in processes that the program starts."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    if value is not None:
        environment["PYTHONPATH"] = value
    again = f"{SEEN}\nimport subprocess\nsubprocess.run([sys.executable, '-c', {SEEN!r}])"
    check_same([sys.executable, "-c", again], env=environment)


@pytest.mark.parametrize(
    "content",
    [
        "print('theirs')\nimport sys\nsys.custom = 1\n",
        "raise ImportError('theirs')\n",
        "import torch\nprint('imported')\n",
    ],
)
def test_sitecustomize_of_the_user_is_loaded(like_torch: Path, content: str) -> None:
    """Once, with the same effects and error messages."""
    (like_torch / "sitecustomize.py").write_text(content)
    script = "import sys; print(getattr(sys, 'custom', None), 'torch' in sys.modules)\n" + SEEN
    isolated = (RUN[0], "-I", *RUN[1:])  # else run itself, which is a Python program, loads it as well
    without, with_run = (outcome([*prefix, sys.executable, "-c", script]) for prefix in ((), isolated))
    assert (without.status, without.stderr) == (with_run.status, with_run.stderr)
    if "torch" not in content:  # else further finders are added
        assert without.stdout == with_run.stdout


def test_failed_import_is_that_of_the_program(like_torch: Path) -> None:
    (like_torch / "torch/__init__.py").write_text(
        "import os\nif 'OK' not in os.environ: raise ImportError('no CUDA')\n"
    )
    script = "import os\ntry:\n    import torch\nexcept ImportError as error: print(error)\nos.environ['OK'] = '1'\n"
    without, with_run = both([sys.executable, "-c", script + RECORDED])
    assert ("no CUDA\nFalse\n", "no CUDA\nTrue\n") == (without.stdout, with_run.stdout)


CHILD = "import subprocess\nsubprocess.run([sys.executable, *{arguments!r}], check=True, env={{**os.environ, {env}}})\n"
TOOL, RANK, LOCAL_RANK, PMI_RANK = (
    CHILD.format(arguments=["-c", RECORDED], env=env)
    for env in ("", "'RANK': '1'", "'LOCAL_RANK': '1'", "'PMI_RANK': '1'")
)
REPLACED = f"if not sys.argv[1:]: os.execv(sys.executable, [sys.executable, '-c', {RECORDED!r}, 'x'])"
SPAWNING = """\
import multiprocessing, os, sys, torch
def work(): print("monitel_otlp.configuration" in sys.modules, flush=True)
if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[1]).Process(target=work)
    process.start(); process.join(); work()
"""
#: Arguments of Python, and for each process that it becomes, if it is recorded.
ROLES: dict[str, tuple[list[str], list[bool]]] = {
    "tool of a program": (["-c", RECORDED + TOOL], [True, False]),
    "rank that a program starts": (["-c", RECORDED + RANK], [True, True]),
    "rank that Lightning starts": (["-c", RECORDED + LOCAL_RANK], [True, True]),
    "rank of an mpiexec that a program starts": (["-c", RECORDED + PMI_RANK], [True, True]),
    "exec": (["-c", f"{RECORDED}{REPLACED}"], [True, True]),
    "run in a program": (
        ["-c", f"{RECORDED}import subprocess\nsubprocess.run([*{RUN!r}, sys.executable, '-c', {RECORDED!r}])"],
        [True, True],
    ),
    "launcher as a module": (["-m", "torch.distributed.run"], [False, True]),
    "launcher as a script": (["packages/torchrun"], [False, True]),
    "rank as a module": (["-m", "torch.distributed.worker"], [True]),
    "program on stdin": (["-"], [True]),
    "spawned child": (["spawning.py", "spawn"], [False, True]),
    "child of a server": (["spawning.py", "forkserver"], [False, True]),
    "worker of the compiler": (["packages/torch/_inductor/compile_worker/__main__.py", "--x"], [False]),
    "tool of torch": (["-m", "torch.utils.collect_env"], [False]),
    "warnings that are errors": (["-W", "error", "-c", RECORDED], [True]),
}
DRIVER = """\
import json, subprocess, sys
commands = json.loads(sys.argv[1])
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
ended = [subprocess.Popen([sys.executable, *each], **pipes) for each in commands]
print(json.dumps([each.communicate(sys.argv[2]) for each in ended]))
"""


def test_roles_of_processes(like_torch: Path) -> None:
    """Programs and ranks are recorded; launchers, tools, and workers of multiprocessing and of the compiler are not."""
    (like_torch / "torch/distributed/run.py").write_text(RECORDED + RANK)
    (like_torch / "torchrun").write_text(RECORDED + RANK)
    worker = like_torch / "torch/_inductor/compile_worker"
    worker.mkdir(parents=True)
    (worker / "__main__.py").write_text(RECORDED)
    Path("spawning.py").write_text(SPAWNING)
    arguments = json.dumps([command for command, _ in ROLES.values()]), RECORDED
    ended = outcome([*RUN, sys.executable, "-c", DRIVER, *arguments], env={**os.environ, "OTEL_SDK_DISABLED": "true"})
    assert 0 == ended.status, ended.stderr
    printed = dict(zip(ROLES, json.loads(ended.stdout), strict=True))
    expected = {name: ["".join(f"{each}\n" for each in recorded), ""] for name, (_, recorded) in ROLES.items()}
    assert expected == printed


@pytest.mark.parametrize(("folder", "damaged"), [("/nowhere", True), ("/nowhere", False), ("/etc/passwd", False)])
def test_process_that_cannot_be_recorded_works(like_torch: Path, folder: str, damaged: bool) -> None:
    """A daemon that outlives the command, or one with a damaged installation, prints no error."""
    if damaged:
        (like_torch / "monitel_otlp").mkdir()
        (like_torch / "monitel_otlp/__init__.py").write_text("raise RuntimeError('damaged')\n")
    script = "import torch, monitel; print('works')"
    environment = {**os.environ, "PYTHONPATH": f"{INJECTED}:{like_torch}", "MONITEL_RUN_FOLDER": folder}
    ended = outcome([sys.executable, "-c", script], env=environment)
    assert (0, "works\n", "") == (ended.status, ended.stdout, ended.stderr)
