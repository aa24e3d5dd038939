"""Find the entry point of a job: a script, a module, an R script, or any other program; nothing is executed."""

from __future__ import annotations

import ast
import difflib
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

from train.errors import ScriptError
from train.script.requirements import distribution_of
from train.script.source import (
    Import,
    Source,
    check_file,
    check_script,
    find_imports,
    imports,
    parse,
    script_hint,
)

_R = (".R", ".r")
_PYTHONS = ("python", "python3")
# Options that do not change where modules are found.
_HARMLESS = ("-u", "-B", "-O", "-OO", "-b", "-q", "-v", "-d", "-s")
_MAIN = "__main__.py"
_TEXT_MAX = 1 << 18  # bytes of a file that are searched for names of other files
_SCRIPT_NAMES = re.compile(r"[\w./+-]+\.py\b")
_MODULE_NAMES = re.compile(r"(?<![\w-])-m[ \t]+([A-Za-z_][\w.]*)")
_RUN_BY = {".py": "python", ".R": "Rscript", ".r": "Rscript", ".sh": "bash", ".bash": "bash"}


class Kind(Enum):
    """Kinds of entry points."""

    SCRIPT = "script"
    MODULE = "module"
    R = "R script"
    COMMAND = "command"


@dataclass(frozen=True)
class EntryPoint:
    """The entry point of a job.

    Attributes:
        kind: The kind.
        name: Its name for display: ``task.py``, ``-m package.task``, ``bash run.sh``.
        workdir: Absolute; the directory that becomes the task's working directory.
        file: Absolute; the file that runs first if it is in the directory. It is uploaded even if it is ignored.
        words: The command, without the interpreter if there is one, and without arguments of the command line.
        note: What the user should know about it; empty: nothing.
    """

    kind: Kind
    name: str
    workdir: Path
    file: Path | None
    words: tuple[str, ...]
    note: str = ""

    @property
    def program(self) -> str:
        """The program that a host needs in addition to its interpreter; empty: none."""
        if self.kind is Kind.R:
            return "Rscript"
        return "" if self._of_python else self.words[0]

    @property
    def _of_python(self) -> bool:
        return self.kind in (Kind.SCRIPT, Kind.MODULE) or (self.kind is Kind.COMMAND and self.words[0] in _PYTHONS)

    @property
    def first(self) -> tuple[Path, bool] | None:
        """The Python file of the directory that runs first, and whether as a module; None: another program does."""
        if self.kind in (Kind.SCRIPT, Kind.MODULE):
            return (self.file, self.kind is Kind.MODULE) if self.file is not None else None
        return _first_of_python(self.words[1:], self.workdir) if self._of_python else None

    def command(self, python: str, arguments: Sequence[str] = ()) -> list[str]:
        """Return the command of a task.

        Args:
            python: The host's interpreter.
            arguments: Arguments of the script.
        """
        if self.kind is Kind.COMMAND and self._of_python:
            return [python, *self.words[1:], *arguments]
        first = [python] if self._of_python else ["Rscript"] if self.kind is Kind.R else []
        return [*first, *self.words, *arguments]

    @cached_property
    def sources(self) -> list[Source]:
        """The known Python files that the job runs, read once: the entry point first, then its modules.

        For any other program these are the files that its words name, or that a text file among its words names.
        """
        if self.kind is Kind.R:
            return []
        is_python = self.kind is not Kind.COMMAND and self.file is not None
        first = [(self.file, self.kind is Kind.MODULE)] if is_python else _named(self.words, self.workdir)
        read = (source for file, module in first if file for source in imports(file, self.workdir, module=module))
        return list({source.path: source for source in read}.values())

    @property
    def texts(self) -> list[str]:
        """The texts of `sources`."""
        return [source.text for source in self.sources]

    def settings_of(self, variable: str) -> list[str]:
        """Return the values that a command or a shell script among its words assigns to an environment variable.

        An empty string represents a value that is not a constant.
        """
        if self.kind is not Kind.COMMAND:
            return []
        setting = re.compile(rf"(?<![\w$]){variable}=[\"']?([\w.-]*)")
        return [value for text in _texts(self.words, self.workdir) for value in setting.findall(text)]


def find_entry(script: str, module: str, command: Sequence[str], workdir: str) -> EntryPoint:
    """Return the entry point; exactly one of `script`, `module`, and `command` is given.

    Args:
        script: A Python or R script, or a directory with ``__main__.py``.
        module: Dotted name of a module below the working directory.
        command: A program with its arguments.
        workdir: The directory to upload; empty: the script's, otherwise the current one.

    Raises:
        ScriptError: It does not exist or cannot be started.
    """
    if module:
        return _module(module, _directory(workdir))
    if script:
        return _script(Path(script).expanduser(), workdir)
    if not command:
        raise ScriptError(
            "nothing to run: give SCRIPT, -m MODULE, or a command after --",
            hint="such as: fleet train task.py",
            next_steps=[("fleet", "train", "--help")],
        )
    return _command(tuple(command), _directory(workdir))


def _directory(workdir: str) -> Path:
    directory = Path(workdir).expanduser().resolve()
    if not directory.is_dir():
        raise ScriptError(f"--workdir {workdir} is not a directory", hint="name the directory to upload")
    return directory


# --- scripts --------------------------------------------------------------------------------------------------------


def _script(script: Path, workdir: str) -> EntryPoint:
    if script.is_dir():
        directory, script = script, script / _MAIN
        if not script.is_file():
            raise ScriptError(f"{directory} is a directory without {_MAIN}", hint=script_hint(directory))
    kind = Kind.R if script.suffix in _R else Kind.SCRIPT
    (check_file if kind is Kind.R else check_script)(script)
    file = script.parent.resolve() / script.name
    directory = _directory(workdir) if workdir else file.parent
    if not file.is_relative_to(directory):
        raise ScriptError(
            f"{script} is outside the directory to upload, {directory}",
            hint="leave --workdir out, or name a directory that holds the script",
            again={"--workdir": None},
        )
    module = _as_module(script, file, directory if workdir else None) if kind is Kind.SCRIPT else None
    if module is not None:
        return module
    path = file.relative_to(directory).as_posix()
    # Python and Rscript take a leading hyphen for an option.
    word = f"./{path}" if path.startswith("-") else path
    return EntryPoint(kind, path, directory, file, (word,))


def _as_module(script: Path, file: Path, workdir: Path | None) -> EntryPoint | None:
    """Return the module that a script is if it imports from its package; None: Python finds what it imports.

    Args:
        script: The script as it was given.
        file: Its absolute path.
        workdir: The directory to upload; None: one that is found, the current one or a directory below it.

    Raises:
        ScriptError: It has a relative import at its top level that needs another directory.
    """
    tree = parse(file.read_bytes(), str(script))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    if "__package__" in names:
        return None
    main = (node for node in tree.body if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test))
    first = [*tree.body, *(child for node in main for child in node.body)]
    relative = next((item for item in find_imports(first) if item.level), None)
    top = workdir or Path.cwd()
    above = [workdir] if workdir else [path for path in file.parents[1:] if path.is_relative_to(top)]
    root, line = _root_of(file, above, list(find_imports(ast.walk(tree))))
    if root is None and relative is not None:
        line, root = relative.line, file.parents[min(relative.level, len(file.parents) - 1)]
        while (root / "__init__.py").is_file() and root != root.parent:
            root = root.parent
        root = workdir if workdir and root.is_relative_to(workdir) else root
    if root is None:
        return None
    name = module_name(file, root)
    if name and root.is_relative_to(top):
        note = f"{script}:{line} imports from a package of {root}: running -m {name} there"
        return EntryPoint(Kind.MODULE, f"-m {name}", root, file, ("-m", name), note)
    raise ScriptError(
        f"{script}:{line} imports from its package, which a script does not have",
        cause="it would fail with: attempted relative import with no known parent package",
        hint="start it as a module",
        again={"SCRIPT": None, "--workdir": str(root), "-m": name} if name else None,
    )


def _root_of(file: Path, above: Sequence[Path], items: Sequence[Import]) -> tuple[Path | None, int]:
    """Return the directory of `above` in which the imports of a script are found, and the line of the first.

    Returns None if all of them are found elsewhere, or if some are next to the script.
    """
    result: tuple[Path | None, int] = None, 0
    for item in items:
        name = item.parts[0]
        if item.level or name in sys.stdlib_module_names or distribution_of(name):
            continue
        if any(item.files(file, [file.parent])) or (file.parent / name).is_dir():
            return None, 0
        root = next((directory for directory in above if any(item.files(file, [directory]))), None)
        result = (root, item.line) if root is not None and result[0] is None else result
    return result


def module_name(file: Path, root: Path) -> str:
    """Return the dotted name by which Python, started in `root`, runs a file; empty: none."""
    parts = file.relative_to(root).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__main__" else parts
    return "" if any("." in part or part.startswith("-") for part in parts) else ".".join(parts)


# --- modules --------------------------------------------------------------------------------------------------------


def _module(name: str, directory: Path) -> EntryPoint:
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        again = {"-m": None, "SCRIPT": name} if name.endswith(".py") else None
        message = f"-m takes the dotted name of a module, not {name}"
        raise ScriptError(message, hint="such as: -m package.task", again=again)
    file = _module_file(name, parts, directory)
    parse(check_file(file), file.relative_to(directory).as_posix())
    return EntryPoint(Kind.MODULE, f"-m {name}", directory, file, ("-m", name))


def _module_file(name: str, parts: Sequence[str], directory: Path) -> Path:
    """Return the file that ``-m NAME`` runs from `directory`; a package takes precedence over a module."""
    base = directory.joinpath(*parts)
    main, module = base / _MAIN, base.with_name(base.name + ".py")
    is_package = (base / "__init__.py").is_file()
    if main.is_file() and (is_package or not module.is_file()):
        return main
    if is_package:
        inside = sorted(path.stem for path in base.glob("*.py") if path.stem != "__init__")
        raise ScriptError(
            f"{name} is a package without {_MAIN}, which cannot be run",
            hint="" if inside else f"write {main}",
            again={"-m": f"{name}.{inside[0]}"} if inside else None,
        )
    if module.is_file():
        return module
    tried = " nor ".join(path.relative_to(directory).as_posix() for path in (module, main))
    message = f"the module {name} does not exist: neither {tried} in {directory}"
    for option, value in _similar_module(name, parts, directory):
        raise ScriptError(message, hint=f"did you mean {option} {value}?", again={option: value})
    raise ScriptError(
        message,
        hint="name the directory above it with --workdir, or run a module that is installed on the hosts",
        next_steps=[("fleet", "train", "--", "python", "-m", name)],
    )


def _similar_module(name: str, parts: Sequence[str], directory: Path) -> Iterator[tuple[str, str]]:
    """Yield the options that lead to a module that exists, the likeliest first."""
    for child in sorted(path for path in directory.glob("*/") if not path.name.startswith(".")):
        if any(_run_module(name, child)):
            yield "--workdir", str(child)
    near = directory.joinpath(*parts[:-1]).glob("*.py")
    names = [".".join([*parts[:-1], path.stem]) for path in near if path.stem.isidentifier()]
    yield from (("-m", close) for close in difflib.get_close_matches(name, names, n=1))


# --- any other program ----------------------------------------------------------------------------------------------


def _command(words: tuple[str, ...], directory: Path) -> EntryPoint:
    first = words[0]
    if not first or any("\0" in word for word in words):
        raise ScriptError("the command after -- is empty or invalid", hint="such as: fleet train -- bash run.sh")
    path = directory / first
    exists, is_executable = path.is_file(), path.is_file() and os.access(path, os.X_OK)
    # A script in place of a program, unless it is run as one: ``./run.sh``.
    command: tuple[str, ...] = ()
    if path.suffix in (".py", *_R) and not is_executable and (exists or Path(first).is_file()):
        command = ("fleet", "train", first, *(("--", *words[1:]) if len(words) > 1 else ()))
    elif path.suffix in _RUN_BY and "/" not in first and exists:
        command = ("fleet", "train", "--", _RUN_BY[path.suffix], *words)
    if command:
        raise ScriptError(f"{first} is a script, not a program", next_steps=[command])
    is_path = "/" in first
    is_below = is_path and not Path(first).is_absolute()
    if is_below and not exists:
        raise ScriptError(f"the program {first} does not exist in the directory to upload", hint="check the path")
    if is_below and not is_executable:
        run = ("fleet", "train", "--", _RUN_BY.get(path.suffix, "bash"), first)
        raise ScriptError(
            f"{first} may not be executed",
            hint="make it executable, or name the program that runs it",
            next_steps=[("chmod", "+x", str(path)), run],
        )
    inside = is_path and exists and path.resolve().is_relative_to(directory)
    return EntryPoint(Kind.COMMAND, shlex.join(words), directory, path if inside else None, words)


def _named(words: Sequence[str], directory: Path) -> Iterator[tuple[Path, bool]]:
    """Yield Python files of `directory` that a command or a text file among its words names; whether as a module."""
    for text in _texts(words, directory):
        for item in _SCRIPT_NAMES.findall(text):
            yield from _script_file(item, directory)
        for name in _MODULE_NAMES.findall(text):
            yield from _run_module(name, directory)


def _first_of_python(words: Sequence[str], directory: Path) -> tuple[Path, bool] | None:
    """Return the file of `directory` that Python runs with these words, and whether as a module; None: unknown."""
    waiting = iter(words)
    for word in waiting:
        if word == "-m":
            return next(_run_module(next(waiting, ""), directory), None)
        if word in ("-X", "-W"):
            next(waiting, None)
        elif word not in _HARMLESS:
            return next(_script_file(word, directory), None) if not word.startswith("-") else None
    return None


def _script_file(word: str, directory: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the file of `directory` that a word names, if it exists."""
    path = directory / word
    if path.is_file() and path.resolve().is_relative_to(directory):
        yield path, False


def _run_module(name: str, directory: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the file that ``-m NAME`` runs, if it exists: of a package, or of a plain module."""
    base = directory.joinpath(*name.split("."))
    files = (base / _MAIN, base.with_name(f"{base.name}.py"))
    yield from [(path, True) for path in files if path.is_file()][:1]


def _texts(words: Sequence[str], directory: Path) -> Iterator[str]:
    """Yield a command, and the text files that it names."""
    yield shlex.join(words)
    for word in words:
        path = directory / word
        if path.suffix != ".py" and path.is_file() and path.stat().st_size <= _TEXT_MAX:
            yield path.read_bytes().decode("utf-8", "replace")
