"""The description of a run: masked command, git commit, ranks, versions."""

from pathlib import Path

import pytest

from monitel import run_events
from monitel.run_events import describe_run, git_commit

HASH = "0123456789abcdef0123456789abcdef01234567"


def repository(folder: Path, head: str, **files: str) -> Path:
    git = folder / ".git"
    git.mkdir(parents=True)
    (git / "HEAD").write_text(head)
    for name, text in files.items():
        path = git / name.replace("__", "/").replace("packed_refs", "packed-refs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_commit_is_read_from_the_repository(tmp_path: Path) -> None:
    """On a branch, from the folder or from one above, on a packed branch, in a worktree, and without a branch."""
    main = repository(tmp_path / "main", "ref: refs/heads/main\n", refs__heads__main=f"{HASH}\n")
    (main / "a/b").mkdir(parents=True)
    assert [HASH, HASH] == [git_commit(main), git_commit(main / "a/b")]
    lines = f"# pack-refs with: peeled\n{'f' * 40} refs/heads/mainline\n{HASH} refs/heads/main\n^{'e' * 40}\n"
    assert HASH == git_commit(repository(tmp_path / "packed", "ref: refs/heads/main\n", packed_refs=lines))
    assert HASH == git_commit(repository(tmp_path / "detached", f"{HASH}\n"))
    own = main / ".git/worktrees/side"
    own.mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/main\n")
    (own / "commondir").write_text("../..\n")
    (tmp_path / "side").mkdir()
    (tmp_path / "side/.git").write_text(f"gitdir: {own}\n")
    assert HASH == git_commit(tmp_path / "side")
    for number, head in enumerate(("ref: refs/heads/main\n", "not a hash\n", "")):  # new, or damaged
        assert git_commit(repository(tmp_path / f"{number}", head)) is None


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
