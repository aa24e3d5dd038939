"""Decide which files are not uploaded: .gitignore as git reads it, overridden by .fleetignore."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

ALWAYS = frozenset({".git", ".hg", ".svn", "__pycache__", ".venv", ".DS_Store", ".ipynb_checkpoints"})
"""Names that are left out regardless of the ignore files, in addition to those of TEMPORARY."""

TEMPORARY = re.compile(r".*\.pyc|\.#.*|#.*#|.*~|\..*\.sw[a-p]|\.nfs[0-9a-f]{8,}", re.DOTALL)
"""Python caches, locks, autosaves, backups and swap files of editors, and files that NFS keeps for open files."""

ENVIRONMENTS = frozenset({"pyvenv.cfg", "conda-meta"})
"""A directory that contains one of these is a virtual environment, regardless of its name."""

_GIT = ".gitignore"
_FLEET = ".fleetignore"

# Pathspec's patterns also match the contents of a matched directory, through this group. Git checks each directory
# on the path instead, so that a pattern must match the path itself, and a later one can negate it.
_CONTENTS = "(?P<ps_d>/)"


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    directories_only: bool
    ignore: bool


class _RuleFile(NamedTuple):
    """The rules of one file, for paths relative to the directory of that file."""

    rules: tuple[_Rule, ...]
    cut: int  # number of characters to remove from a path relative to the bundle
    prefix: str  # text to put before it, if the directory of the file contains the bundle

    def decide(self, path: str, is_directory: bool) -> bool | None:
        """Return whether `path` is ignored, according to the last rule that matches; None if no rule matches."""
        path = self.prefix + path[self.cut :]
        for rule in reversed(self.rules):
            if rule.directories_only and not is_directory:
                continue
            if rule.pattern.search(path + "/" if rule.directories_only else path):
                return rule.ignore
        return None


class IgnoreRules(NamedTuple):
    """The ignore files that apply to one directory, outermost first."""

    git: tuple[_RuleFile, ...] = ()
    fleet: tuple[_RuleFile, ...] = ()

    def ignores(self, path: str, name: str, is_directory: bool) -> bool:
        """Return whether `path`, relative to the bundle and called `name`, is left out.

        A directory that is left out is not entered: a rule cannot include a path in it again.
        """
        if name in ALWAYS or TEMPORARY.fullmatch(name):
            return True
        decisions = (file.decide(path, is_directory) for file in reversed((*self.git, *self.fleet)))
        return next((decision for decision in decisions if decision is not None), False)

    def entering(self, directory: Path, names: Collection[str], path: str) -> IgnoreRules:
        """Return the rules within a directory.

        Args:
            directory: Its path on this computer.
            names: Names of its contents.
            path: Its path relative to the bundle; empty for the top of the bundle.
        """
        cut = len(path) + 1 if path else 0
        git, fleet = (
            [_RuleFile(_read(directory / name), cut, "")] if name in names else [] for name in (_GIT, _FLEET)
        )
        return IgnoreRules((*self.git, *git), (*self.fleet, *fleet))


def rules_above(directory: Path) -> IgnoreRules:
    """Return the .gitignore files from the top of the git repository of `directory`, if any, down to `directory`."""
    files: list[_RuleFile] = []
    prefix = ""
    while not (directory / ".git").exists():
        if directory.parent == directory:
            return IgnoreRules()
        prefix = f"{directory.name}/{prefix}"
        directory = directory.parent
        files.append(_RuleFile(_read(directory / _GIT), 0, prefix))
    return IgnoreRules(git=tuple(reversed(files)))


def _read(path: Path) -> tuple[_Rule, ...]:
    try:
        lines = path.read_text(encoding="utf-8-sig", errors="surrogateescape").split("\n")
    except OSError:
        return ()  # as git does for a missing or unreadable file
    return tuple(rule for rule in map(_rule, lines) if rule is not None)


@lru_cache(maxsize=4096)
def _rule(line: str) -> _Rule | None:
    """Return the rule of a line; None for a comment, or an empty or invalid line, which git ignores."""
    from pathspec.patterns.gitignore.base import GitIgnorePatternError
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    try:
        text, ignore = GitIgnoreSpecPattern.pattern_to_regex(line)
        if text is None or ignore is None:
            return None
        pattern = re.compile(text.replace(_CONTENTS, _CONTENTS + "$"), re.DOTALL)
    except (GitIgnorePatternError, re.error):
        return None
    return _Rule(pattern, line.rstrip().endswith("/"), ignore)
