"""The description of a run: masked command, git commit, ranks, versions, and the exception that ended it."""

import sys
from pathlib import Path

import pytest

from monitel import run_events
from monitel.run_events import describe_run, git_commit, last_exception

HASH = "0123456789abcdef0123456789abcdef01234567"


MAIN = "ref: refs/heads/main\n"


def repository(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / ".git" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_commit_is_read_from_the_repository(tmp_path: Path) -> None:
    """On a branch, from the folder or from one above, on a packed branch, in a worktree, and without a branch."""
    worktree = {"worktrees/side/HEAD": MAIN, "worktrees/side/commondir": "../..\n"}
    main = repository(tmp_path / "main", {"HEAD": MAIN, "refs/heads/main": f"{HASH}\n", **worktree})
    (main / "a/b").mkdir(parents=True)
    assert [HASH, HASH] == [git_commit(main), git_commit(main / "a/b")]
    lines = f"# pack-refs with: peeled\n{'f' * 40} refs/heads/mainline\n{HASH} refs/heads/main\n^{'e' * 40}\n"
    assert HASH == git_commit(repository(tmp_path / "packed", {"HEAD": MAIN, "packed-refs": lines}))
    assert HASH == git_commit(repository(tmp_path / "detached", {"HEAD": f"{HASH}\n"}))
    (tmp_path / "side").mkdir()
    (tmp_path / "side/.git").write_text(f"gitdir: {main}/.git/worktrees/side\n")
    assert HASH == git_commit(tmp_path / "side")
    for number, head in enumerate((MAIN, "not a hash\n", "")):  # new, or damaged
        assert git_commit(repository(tmp_path / f"{number}", {"HEAD": head})) is None


def test_damaged_repository_does_not_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other details are there."""
    (tmp_path / ".git").write_text("gitdir: /nowhere\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "8")
    found = describe_run()
    assert ("run.git.commit" not in found, 8) == (True, found["run.world_size"])


def test_exception_of_a_worker_has_its_cause_in_the_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch puts the traceback of a worker of a DataLoader into the message; summaries show the first line."""
    lines = ["Caught OSError in worker 0.", "Original Traceback (most recent call last):", *["  File"] * 300]
    error = OSError("\n".join([*lines, "OSError: no disk", ""]))
    monkeypatch.delattr(sys, "ps1", raising=False)
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    found = last_exception()
    assert found is not None
    assert ("OSError", "Caught OSError in worker 0. OSError: no disk") == (found[0], found[1].partition("\n")[0])


def test_long_command_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A code in the command line may be long."""
    monkeypatch.setattr("sys.orig_argv", ["python", "-c", "x" * 5000])
    assert run_events._LONGEST_COMMAND == len(str(describe_run()["run.command"]))
