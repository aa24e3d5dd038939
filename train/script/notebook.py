"""Read the files that a notebook writes with ``%%writefile``; nothing is executed."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from train.errors import ScriptError
from train.script.arguments import value_of

_LARGEST = 64 << 20  # bytes, with the outputs of the cells
_WRITES = re.compile(
    r"(?:%%(?:time|capture)\b.*\n)*%%(?:writefile|file)[ \t]+(-a[ \t]+|--append[ \t]+)?"
    r"(\"[^\"\n]+\"|'[^'\n]+'|\S+)[ \t]*(?:\n|$)"
)
_RUNS = re.compile(
    r"^[ \t]*(?:[!%].{0,300}?\b|cd .{0,300}?&& *)?(?:python[\d.]*|%?run)[ \t]+"
    r"(?:-\w+[ \t]+)*((?<=-m )[\w.]+|[\w./-]+\.py\b)((?:\\\n|[^\n])*)",
    re.MULTILINE,
)
_SHELLS = re.compile(r"[ \t]*(?:%%(?:bash|sh|script)\b|[!%])|.*\n[ \t]*[!%]", re.DOTALL)
_STRATEGY = re.compile(r"\btf\.distribute\b|\btensorflow\.distribute\b|Strategy\(")


class Notebook(NamedTuple):
    """The files that a notebook writes, and the script among them that it runs.

    Attributes:
        files: The text of each file, by its path below the directory of the notebook.
        main: The script that begins the training.
        arguments: Those with which all its cells run it.
    """

    files: dict[str, str]
    main: str
    arguments: tuple[str, ...] = ()


def read_notebook(path: Path) -> Notebook:
    """Return the files that a notebook writes.

    Raises:
        ScriptError: It cannot be read, writes no script, or writes outside its directory.
    """
    files: dict[str, str] = {}
    runs: dict[str, list[tuple[str, ...]]] = {}
    for cell in _cells(path):
        writes = _WRITES.match(cell)
        if writes:
            name = _inside(writes[2].strip("\"'"), path)
            files[name] = (files.get(name, "") if writes[1] else "") + cell[writes.end() :].rstrip("\n") + "\n"
        elif _SHELLS.match(cell):
            for name, words in _RUNS.findall(cell):
                run = posixpath.normpath(name if name.endswith(".py") else name.replace(".", "/") + ".py")
                runs[run] = [*runs.pop(run, []), _arguments(words)]
    parents = {parent for name in files for parent in map(str, Path(name).parents)}
    if parents & {*files}:
        raise ScriptError(f"{path} writes {min(parents & {*files})} as a file and as a directory", hint="rename one")
    scripts = [name for name in files if name.endswith(".py")]
    if not scripts:
        raise ScriptError(
            f"{path} is a notebook, not a script",
            hint="a notebook runs only if its cells write the script with %%writefile",
            next_steps=[("jupyter", "nbconvert", "--to", "script", str(path))],
        )
    below = [name for run in runs for name in scripts if name.endswith("/" + run)]  # the cell changes the directory
    others = [name for name in scripts if not name.endswith("__init__.py")]
    likely = [name for name in runs if name in scripts] or below or others or scripts
    main = next((name for name in reversed(likely) if _STRATEGY.search(files[name])), likely[-1])
    given = {each for run in runs if f"/{main}".endswith(f"/{run}") for each in runs[run]}
    return Notebook(files, main, given.pop() if len(given) == 1 else ())


def _arguments(text: str) -> tuple[str, ...]:
    """Return the arguments in the rest of a shell's command; none if they are the notebook's or one task's."""
    line = re.split(r"\s\d?[<>]|[;|&]|\s#", text.replace("\\\n", " "), maxsplit=1)[0]
    try:
        words = () if re.search(r"[$`{*]", line) else tuple(shlex.split(line))
    except ValueError:
        return ()
    return () if any(value_of(word.partition("=")[0]) for word in words if word.startswith("-")) else words


def _cells(path: Path) -> Iterator[str]:
    """Yield the text of each cell with code."""
    try:
        if path.stat().st_size > _LARGEST:
            raise ScriptError(f"the notebook {path} is too large", hint="clear the outputs of its cells")
        for cell in json.loads(path.read_bytes()).get("cells", []):
            if cell["cell_type"] == "code":
                yield "".join(cell["source"]).replace("\r\n", "\n").lstrip(" \t\n")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ScriptError(f"the notebook {path} cannot be read", cause=reason) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        hint = "open it in Jupyter and save it again"
        raise ScriptError(f"{path} is a damaged notebook, or one of an old format", hint=hint) from error


def _inside(name: str, path: Path) -> str:
    """Return the normalized path of a file that a cell writes."""
    normal = posixpath.normpath(name)
    if name.startswith(("/", "~")) or normal.split("/")[0] in ("..", ".") or not name.isprintable() or "\\" in name:
        raise ScriptError(
            f"{path} writes {name[:200]!r}, which is not a file below its directory",
            hint="name the file in %%writefile by a relative path",
        )
    return normal
