from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fleet.remote.ignore import IgnoreRules, rules_above
from fleet.remote.upload import scan
from train.agent.protocol.records import EntryKind

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="compares with git")


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def git(root: Path, *arguments: str) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(root)}
    done = subprocess.run(["git", *arguments], cwd=root, env=env, check=True, capture_output=True, text=True)
    return done.stdout


def kept_by_git(root: Path) -> set[str]:
    if not (root / ".git").exists():
        git(root, "init", "-q")
    return set(filter(None, git(root, "ls-files", "-z", "--others", "--exclude-standard").split("\0")))


def kept(root: Path, cache: Path) -> set[str]:
    bundle = scan(root, None, [], cache)
    return {entry.path for entry in bundle.entries if entry.kind is not EntryKind.DIRECTORY}


TREE = [
    "a", "b.py", "c.log", "keep.log", "foo/a", "foo/b.py", "foo/keep/x", "foo/bar/c.log", "bar/foo/a", "bar/foo/b.py",
    "deep/er/still/a", "deep/er/still/c.log", "deep/foo", "with space/a b", "#hash", "!bang", "[x]",
    "build/out.o", "x/build/y",
]  # fmt: skip

CASES = [
    "*.log\n!keep.log",
    "foo",
    "foo/",
    "foo/*\n!foo/keep",
    "foo/*\n!foo/keep/\nfoo/keep/*\n!foo/keep/x",
    "**/foo",
    "**/foo/**",
    "deep/**/a",
    "*\n!*/\n!*.py",
    "*\n!foo/\n!foo/**",
    "/*\n!/foo",
    "[a-b]",
    "[!a]",
    "\\#hash\n\\!bang",
    "# comment\n\n  \n*.py   ",
    "with\\ space",
    "*/build",
    "**",
    "*/",
    "foo\n!foo/a",
    "[z-a]\na",
    "a\r\nb.py\r\n",
]


@needs_git
@pytest.mark.parametrize("patterns", CASES)
def test_a_gitignore_means_what_it_means_to_git(tmp_path: Path, patterns: str) -> None:
    root = tmp_path / "work"
    write(root, dict.fromkeys(TREE, "x"))
    (root / ".gitignore").write_bytes(patterns.encode())
    if "\r" in patterns:  # git treats the carriage return as part of the name; users do not
        assert kept(root, tmp_path / "cache") == set(TREE) - {"a", "b.py", "foo/a", "foo/b.py"} - {
            path for path in TREE if path.endswith(("/a", "/b.py"))
        } | {".gitignore"}
        return
    assert kept(root, tmp_path / "cache") == kept_by_git(root)


@needs_git
def test_gitignores_above_the_working_directory_count(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    write(root, {
        ".gitignore": "*.h5\n/jobs/one/secret\n/secret\njobs/*/tmp/\n",
        "jobs/.gitignore": "*.csv\n!good.csv\n",
        "jobs/one/task.py": "", "jobs/one/model.h5": "", "jobs/one/secret": "", "jobs/one/in/secret": "",
        "jobs/one/bad.csv": "", "jobs/one/good.csv": "", "jobs/one/tmp/x": "",
    })  # fmt: skip
    by_git = {path.removeprefix("jobs/one/") for path in kept_by_git(root) if path.startswith("jobs/one/")}
    assert by_git == {"task.py", "in/secret", "good.csv"}
    assert kept(root / "jobs/one", tmp_path / "cache") == by_git


def test_a_gitignore_above_counts_only_within_a_repository(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "*.py", "work/task.py": ""})
    assert rules_above(tmp_path / "work") == IgnoreRules()


def test_fleetignore_overrides_gitignore_at_any_depth(tmp_path: Path) -> None:
    root = tmp_path / "work"
    write(root, {
        ".gitignore": "data/\n*.bin\n", "foo/.gitignore": "x\n",
        ".fleetignore": "!data/\n!foo/x\nnotes/\n", "foo/.fleetignore": "y\n",
        "data/a": "", "data/b.bin": "", "c.bin": "", "foo/x": "", "foo/y": "", "notes/n": "", "task.py": "",
    })  # fmt: skip
    assert kept(root, tmp_path / "cache") == {
        ".gitignore", ".fleetignore", "foo/.gitignore", "foo/.fleetignore", "data/a", "foo/x", "task.py",
    }  # fmt: skip


def test_some_names_stay_behind_whatever_the_files_say(tmp_path: Path) -> None:
    root = tmp_path / "work"
    left = [".git/config", "__pycache__/a.pyc", ".venv/bin/python", "b.pyc", ".DS_Store", "n/.git/x"]
    write(root, {".fleetignore": "!*\n!.git\n!*.pyc\n", "task.py": "", **dict.fromkeys(left, "")})
    assert kept(root, tmp_path / "cache") == {".fleetignore", "task.py"}
