"""Check that the user's script can start, and find the modules of its directory that it imports.

Nothing is executed. The script is compiled by the Python that runs this program, whose version may differ from the
version on the hosts; the error names the version.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import errno
import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from train.errors import ScriptError

_LINE_SHOWN = 100  # characters of an offending line


def check_script(script: Path) -> Path:
    """Return `script` unchanged if it can be read and compiled.

    Raises:
        ScriptError: It is missing, not a file, not readable, not a Python script, or does not compile.
    """
    content = check_file(script)
    _check_name(script)
    parse(content, str(script))
    return script


def check_file(script: Path) -> bytes:
    """Return the content of a script in any language.

    Raises:
        ScriptError: It is missing, not a file, or not readable.
    """
    _check_kind(script)
    try:
        return script.read_bytes()
    except OSError as error:
        raise _unreadable(script, error) from error


class Source(NamedTuple):
    """A Python file, read once.

    Attributes:
        name: Its path below the directory of the job, with forward slashes.
        content: Its bytes; empty if it cannot be read.
        path: The file.
        tree: Its syntax tree, which must not be changed; None: it does not compile.
        error: The reason for this.
    """

    name: str
    content: bytes
    path: Path = Path()
    tree: ast.Module | None = None
    error: ScriptError | None = None

    @property
    def text(self) -> str:
        """Its content as text."""
        return self.content.decode("utf-8", "replace")


def source_of(name: str, content: bytes, path: Path = Path()) -> Source:
    """Return a source with this name and content."""
    try:
        return Source(name, content, path, parse(content, name))
    except ScriptError as error:
        return Source(name, content, path, error=error)


def imports(script: Path, workdir: Path, *, module: bool = False) -> list[Source]:
    """Return `script` and the modules of `workdir` that it imports, directly or not; the script first.

    Modules are searched as Python does: next to the script, then in `workdir`; for relative imports, in their
    package. Imports of a module that cannot be read or compiled are not followed: the task may never reach them.

    Args:
        script: The file that runs first.
        workdir: The task's working directory.
        module: True if it is started as a module of `workdir`: its packages run first, and its directory is not
            searched.
    """
    roots = [workdir] if module else [script.parent, workdir]

    def imported(source: Source) -> Iterator[Path]:
        for item in find_imports(ast.walk(source.tree)) if source.tree is not None else ():
            yield from item.files(source.path, roots)

    return follow([script, *(packages_of(script, workdir) if module else ())], workdir, imported)


def follow(first: Sequence[Path], workdir: Path, imported: Callable[[Source], Iterable[Path]]) -> list[Source]:
    """Read files and the files of `workdir` that they import, directly or not, each once.

    Args:
        first: The files to begin with.
        workdir: The task's working directory.
        imported: Returns the files that a file imports.
    """
    waiting = {os.path.realpath(path): path for path in first}
    result: dict[str, Source] = {}
    while waiting:
        key = next(iter(waiting))
        path, content = waiting.pop(key), b""
        with contextlib.suppress(OSError):
            content = path.read_bytes()
        name = Path(os.path.relpath(path, workdir)).as_posix()
        result[key] = source_of(name, content, path)
        for other in imported(result[key]):
            other_key = os.path.realpath(other)
            if other_key not in result and _inside(other, workdir):
                waiting.setdefault(other_key, other)
    return list(result.values())


def parse(content: bytes, name: str) -> ast.Module:
    """Return the syntax tree of a Python file, in the encoding that it declares (PEP 263).

    A content is parsed once in a process.

    Raises:
        ScriptError: It does not compile; the message has `name` and the line.
    """
    try:
        return _compiled(content)
    except SyntaxError as error:
        raise _syntax(name, content, error) from error
    except ValueError as error:  # null bytes, before Python 3.12
        raise ScriptError(f"{name} is not a Python script", cause=str(error)) from error
    except (RecursionError, MemoryError) as error:
        raise ScriptError(f"{name} cannot be compiled", cause="its expressions are nested too deeply") from error


@lru_cache(maxsize=1024)
def _compiled(content: bytes) -> ast.Module:
    """Return the syntax tree of a Python source that compiles.

    Compiling finds more than parsing does: a `return` outside a function, a `nonlocal` without a function around it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes and the like: the task itself shows them
        tree = ast.parse(content)
        compile(tree, "<script>", "exec", dont_inherit=True)
    return tree


def _check_kind(script: Path) -> None:
    try:
        mode = script.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        hint, meant = _similar(script)
        cause = f"it is a link to {script.readlink()}" if script.is_symlink() else ""
        again = {"SCRIPT": meant} if meant else None
        raise ScriptError(f"the script {script} does not exist", cause=cause, hint=hint, again=again) from error
    except OSError as error:
        raise _unreadable(script, error) from error
    except ValueError as error:  # a null character in the name
        raise ScriptError(f"{str(script)!r} is not a file name", hint="name a Python script") from error
    if stat.S_ISDIR(mode):
        raise ScriptError(f"{script} is a directory, not a script", hint=script_hint(script))
    if not stat.S_ISREG(mode):
        raise ScriptError(f"{script} is not a regular file", hint="write the script to a file and name that")


def script_hint(directory: Path) -> str:
    """Return the hint to name a script of a directory."""
    first = min((path.name for path in directory.glob("*.py")), default="")
    return f"name one of its scripts, such as {directory / first}" if first else "name a Python script"


def _check_name(script: Path) -> None:
    if script.suffix == ".ipynb":
        raise ScriptError(
            f"{script} is a notebook, not a script",
            next_steps=[("jupyter", "nbconvert", "--to", "script", str(script))],
        )
    if script.suffix != ".py":
        raise ScriptError(
            f"{script} is not a Python script",
            cause="its name does not end in .py",
            hint="name one that does, or a program that runs it",
            next_steps=[("fleet", "train", "--", "bash", script.name)],
        )


def _similar(script: Path) -> tuple[str, str]:
    """Return a hint for a script that does not exist, and the script that was meant if that is likely."""
    directory = script.parent
    if not directory.is_dir():
        return f"check the path: the directory {directory} does not exist", ""
    names = sorted(path.name for path in directory.glob("*.py"))
    close = [str(directory / name) for name in difflib.get_close_matches(script.name, names, n=1)]
    listed = f"check the name; in {directory.absolute()} there are: {', '.join(names[:8])}"
    return (f"did you mean {close[0]}?", close[0]) if close else (listed if names else "check the path", "")


def _unreadable(script: Path, error: OSError) -> ScriptError:
    message, reason = f"the script {script} cannot be read", (error.strerror or str(error)).lower()
    if error.errno == errno.EACCES:
        return ScriptError(message, cause=reason, next_steps=[("chmod", "u+r", str(script))])
    return ScriptError(message, cause=reason, hint="check the path")


def _syntax(script: str, content: bytes, error: SyntaxError) -> ScriptError:
    line = error.lineno or 0
    written = b"".join(content.splitlines()[line - 1 : line] if line else []).decode("utf-8", "replace")
    shown = (error.text or written).strip()
    shown = shown if len(shown) <= _LINE_SHOWN else f"{shown[:_LINE_SHOWN]}…"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return ScriptError(
        f"{script}:{line}: {error.msg}" if line else f"{script}: {error.msg}",
        cause=f"Python {version} cannot compile the line: {shown}" if shown else "",
        hint="correct it, then check it again",
        next_steps=[("python3", "-m", "py_compile", script)],
    )


class Import(NamedTuple):
    """A module, or a name in a module, that a statement imports.

    Attributes:
        parts: Dotted name.
        level: Number of dots before it; 0: absolute.
        line: Line number from 1.
    """

    parts: list[str]
    level: int
    line: int

    def files(self, module: Path, roots: Sequence[Path]) -> Iterator[Path]:
        """Yield the files that this import in `module` executes; its last part may be a name in a module."""
        package = module.parents[min(self.level, len(module.parents)) - 1]
        for root in [package] if self.level else roots:
            result = []
            for depth in range(1, len(self.parts) + 1):
                path = root.joinpath(*self.parts[:depth])
                choices = (path / "__init__.py", path.with_name(path.name + ".py"))
                result += [path for path in choices if path.is_file()][:1]
            if result:
                yield from result
                return


def find_imports(nodes: Iterable[ast.AST]) -> Iterator[Import]:
    """Yield the imports among the nodes of a syntax tree."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name.split("."), 0, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            yield from (Import([*base, alias.name], node.level, node.lineno) for alias in node.names)


def packages_of(module: Path, workdir: Path) -> Iterator[Path]:
    """Yield the files that Python executes before `module`, the outermost package first."""
    above = [directory for directory in module.parents if directory != workdir and _inside(directory, workdir)]
    yield from (path for directory in reversed(above) if (path := directory / "__init__.py").is_file())


def _inside(path: Path, directory: Path) -> bool:
    return Path(os.path.abspath(path)).is_relative_to(os.path.abspath(directory))  # noqa: PTH100 - normalises `..`
