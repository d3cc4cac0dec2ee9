"""The description of a run: masked command, git commit, ranks, versions."""

from pathlib import Path

import pytest

from monitel import run_events
from monitel.run_events import describe_run, git_commit

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


def test_long_command_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A code in the command line may be long."""
    monkeypatch.setattr("sys.orig_argv", ["python", "-c", "x" * 5000])
    assert run_events._LONGEST_COMMAND == len(str(describe_run()["run.command"]))
