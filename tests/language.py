"""Reject wording that is not plain technical English, in code, tests, and documents.

Run: .venv/bin/python -m tests.language [PATH...]; without a path, the whole project.
Each banned pattern is listed with its replacement. Recorded data is not checked.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SUFFIXES = (".py", ".md", ".toml", ".yml", ".yaml", ".ini", ".sh", "")
# Errors in the words of Google's API.
API_TEXTS = "tests/emulator/"
# Recorded data, and this list.
EXCLUDED = (
    "tests/unit/train/diagnosis/logs/",
    "tests/e2e/scripts/",
    "tests/language.py",
    "tests/process/test_language.py",
    "LICENSE",
    "docs/cli.md",
)

# Pattern (case is ignored; a space also matches a line break and the comment sign after it) and replacement.
PHRASES: tuple[tuple[str, str], ...] = (
    (r"(?:where |was |were |is )?not said", "if unset; [default: ...], printed by the tool"),
    (r"not told", "unknown"),
    (r"mends?|mended|mending", "fix (text), repair (code)"),
    (r"whom", "a sentence with the noun: 'the task that'"),
    (r"there (?:is|are|was|were) no(?= (?!results for scope|chief \.))", "X does not exist, has no X, without X"),
    (r"(?<!there\s)(?:is|are|was|were|be) no(?= (?!longer\b|more\b))", "is not a"),
    (r"so (?:many|long)(?! as\b)", "a number with its noun: 'N times', 'this time'"),
    (r"so (?:many|long) as", "while, as long as"),
    (r"tells?(?: of| what| which| whether| who| how| where| why)?", "reports, shows, describes"),
    (r"told", "reported, set, informed"),
    (r"said", "given, set, stated"),
    (r"stands?(?! for\b|-| ?in\b)", "is, is stored in, is listed in"),
    (r"stood", "was"),
    (r"(?:goes|went|gone|go|going) on", "continue"),
    (r"(?:no|some|any)body", "no process, a process, any user: name it"),
    (r"behind --", "after --"),
    (r"wish(?:es)?", "request"),
    (r"folders?", "directory"),
    (r"beside", "next to, in addition to"),
    (r"anew", "again"),
    (r"(?:he|him|his|she)", "it, its; name the process"),
    (r"(?:is|are) to be", "must be, will be"),
    (r"wants", "needs, requires"),
    (r"speaks", "uses, sends"),
    (r"vouch(?:es)?(?: for)?", "confirm"),
    (r"whoever", "the process that"),
    (r"makes? no sense", "is invalid"),
    (r"nothing but", "only"),
    (r"no more than that", "only that"),
    (r"(?:bury|buried|buries)", "reap"),
    (r"(?:its|their) last words", "last output"),
    (r"such a one", "one of these"),
    (r"of its own accord", "by itself"),
    (r"as it pleases", "at any time"),
    (r"in vain", "without success"),
    (r"for want of", "because of missing"),
    (r"lies? (?:below|above|there|here|in|on|at)", "is in, is under"),
)

# First words of a docstring. A docstring begins with a verb in the imperative, or names a thing.
DOCSTRING_STARTS = ("What", "Whether", "Where", "How", "Who", "Whose", "Which", "When", "All", "Those", "That")

# Words of names: of variables, arguments, functions, classes, and tests.
NAMES: dict[str, str] = {
    "said": "given, text",
    "told": "reported",
    "tell": "report",
    "tells": "reports",
    "teller": "reporter",
    "wish": "request",
    "mend": "fix, repair",
    "mends": "fixes, repairs",
    "whom": "the noun",
    "nobody": "none",
    "somebody": "any",
    "anybody": "any",
    "stands": "is",
    "stood": "was",
    "folder": "directory",
    "folders": "directories",
    "warden": "watchdog",
    "knock": "probe",
    "bury": "reap",
    "doomed": "to_delete",
    "anew": "again",
    "beside": "next_to",
}
# Whole names of variables and arguments that do not name a thing.
VAGUE: dict[str, str] = {
    "one": "the thing: task, host, rule",
    "there": "existing, present",
    "found": "match, result",
    "known": "the thing that is known",
    "own": "the thing that is owned",
    "what": "the thing",
    "who": "the task or host",
}

_CHECKED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Raise, ast.Name, ast.arg)
_GAP = r"(?:[ \t]|[ \t]*\n[ \t]*#?[ \t]*)"
_PATTERNS = [(re.compile(rf"(?:{text.replace(chr(32), _GAP)})(?![\w-])"), instead) for text, instead in PHRASES]
_ANY = re.compile(rf"(?<![\w.'-])(?:{'|'.join(pattern.pattern for pattern, _ in _PATTERNS)})")


class Finding(NamedTuple):
    """A place that breaks a rule."""

    path: str
    line: int
    text: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {' '.join(self.text.split())!r}: write {self.instead}"


def check_text(path: str, text: str) -> Iterator[Finding]:
    """Yield the banned phrases of a file."""
    lowered = text.lower()
    for match in _ANY.finditer(lowered):
        instead = next(instead for pattern, instead in _PATTERNS if pattern.match(lowered, match.start()))
        yield Finding(path, text.count("\n", 0, match.start()) + 1, match[0], instead)


def check_python(path: str, text: str) -> Iterator[Finding]:
    """Yield the docstrings, names, and error texts of a module that break a rule."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, _CHECKED):
            continue
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = (ast.get_docstring(node, clean=False) or "").split(maxsplit=1)[:1]
            if first and first[0] in DOCSTRING_STARTS:
                line = node.body[0].lineno
                yield Finding(path, line, f'"""{first[0]} ', "an imperative (Return, Check, Yield) or a noun")
        if not path.startswith(API_TEXTS):
            yield from _check_error(path, node)
        name, line = _bound_name(node)
        for instead in _better_names(name):
            yield Finding(path, line, name, instead)


@functools.cache
def _better_names(name: str) -> tuple[str, ...]:
    """Return the replacements of a name that breaks a rule."""
    words = (word.lower() for word in re.findall(r"[A-Z]?[a-z]+", name))
    return (*([VAGUE[name]] if name in VAGUE else []), *(NAMES[word] for word in words if word in NAMES))


def _check_error(path: str, node: ast.AST) -> Iterator[Finding]:
    """Yield an error whose text ends with a period."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
        text = node.exc.args[0]
        last = text.values[-1] if isinstance(text, ast.JoinedStr) and text.values else text
        if isinstance(last, ast.Constant) and isinstance(last.value, str) and re.search(r"[^.]\.$", last.value):
            yield Finding(path, node.lineno, last.value[-30:], "no final period")


def _bound_name(node: ast.AST) -> tuple[str, int]:
    """Return the name that a node binds, and its line; empty: none."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name, node.lineno
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id, node.lineno
    return (node.arg, node.lineno) if isinstance(node, ast.arg) else ("", 0)


def files(paths: Sequence[str]) -> list[str]:
    """Return the tracked files below `paths` that the rules apply to."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [
        path
        for path in listed
        if Path(path).suffix in SUFFIXES and not path.startswith(EXCLUDED) and (ROOT / path).is_file()
    ]


def check(paths: Sequence[str]) -> list[Finding]:
    """Return what breaks a rule in the files below `paths`."""
    findings: list[Finding] = []
    for path in files(paths):
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        findings += check_text(path, text)
        if path.endswith(".py"):
            findings += check_python(path, text)
    return sorted(set(findings))


if __name__ == "__main__":
    broken = check(sys.argv[1:] or ["."])
    print("\n".join(map(str, broken)))  # noqa: T201
    sys.exit(bool(broken))
