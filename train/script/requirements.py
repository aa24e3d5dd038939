"""Read a pip requirements file, or the dependencies of pyproject.toml, as text that is valid on any host.

Formats: https://pip.pypa.io/en/stable/reference/requirements-file-format/,
https://packaging.python.org/en/latest/specifications/pyproject-toml/; versions of uv.lock count as constraints.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from train.errors import ScriptError
from train.script import parse_toml, read_rows

REQUIREMENTS = "requirements.txt"
PROJECT = "pyproject.toml"
LOCK = "uv.lock"
FILES = f"{PROJECT} or {REQUIREMENTS}"

_LONGEST = 1000  # characters
_DEEPEST = 20  # files that include each other
_LINES = re.compile(r"\r\n|\r|\n")
_COMMENT = re.compile(r"(^|\s)#.*")
_OPTION = re.compile(r"(-[a-zA-Z]|--[a-z][a-z-]*)(?:\s*=\s*|\s+|(?<=^-[a-zA-Z])(?=\S)|$)(.*)")
_NAME = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[^\]]*\])?\s*(?:[<>=!~;@(]|$)")
_ARCHIVE = re.compile(r"\.(?:whl|zip|tar\.gz|tgz|tar\.bz2|tar\.xz)(?:\[[^\]]*\])?$", re.IGNORECASE)
_URL = r"(?:\w+\+)?(?:https?|ssh)://\S+"
_VERSION = r"(?:===|[<>=!~]=|[<>]) ?[\w.*+!-]+"
_VERSIONS = rf"{_VERSION}(?: ?, ?{_VERSION})*"
_REQUIREMENT = re.compile(  # PEP 508, with one space where it allows several
    rf"[A-Za-z0-9][\w.-]* ?(?:\[[\w., -]*\] ?)?(?:@ ?{_URL}|{_VERSIONS}|\( ?{_VERSIONS} ?\))?(?: ?;.*)?|{_URL}",
    re.ASCII,
)
_INCLUDES = ("-r", "--requirement")
_CONSTRAINS = ("-c", "--constraint")
_EDITABLE = ("-e", "--editable")
_LOCATION_OPTIONS = ("-f", "--find-links", "-i", "--index-url", "--extra-index-url")


@lru_cache(maxsize=1)
def _modules_by_package() -> dict[str, tuple[str, ...]]:
    """Return the modules of well-known packages; any other module may be the author's."""
    rows = read_rows("packages.txt")
    return {name.replace("_", "-"): tuple(modules) or (name,) for name, *modules in rows}


def distribution_of(module: str) -> str:
    """Return the package on PyPI that provides a module; empty if unknown, for example a module of the author."""
    names = [name for name, modules in _modules_by_package().items() if module in modules]
    return min(names, key=lambda name: (normalised(module) != name, names.index(name)), default="")


@dataclass(frozen=True)
class Requirements:
    """The packages for pip to install.

    Attributes:
        text: Lines of a requirements file that includes no other file.
        constraints: Lines of a constraints file; empty: none.
        names: Normalized names of the required packages.
        note: What the user should know about the file; empty: nothing.
    """

    text: str
    constraints: str = ""
    names: frozenset[str] = field(default_factory=frozenset)
    note: str = ""

    def brings(self, module: str) -> bool:
        """Return whether one of the packages is most likely imported as `module`."""
        plain = module.lower().replace("_", "-")
        if self.names & {plain, f"python-{plain}", f"{plain}-python", f"py{plain}", f"py-{plain}"}:
            return True
        return any(module in _modules_by_package().get(name, ()) for name in self.names)


def is_requirement(text: str) -> bool:
    """Return whether a text is one requirement specifier or a URL, not an option or a path."""
    return len(text) <= _LONGEST and text.isprintable() and bool(_REQUIREMENT.fullmatch(" ".join(text.split())))


def normalised(name: str) -> str:
    """Return a package's name as PyPI compares it: ``tf_keras`` is ``tf-keras``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_requirements(file: Path, *, includes: bool = True) -> Requirements:
    """Read a requirements file and all files that it includes, or a ``.toml`` file with ``[project].dependencies``.

    Args:
        file: The file.
        includes: It may include files of this computer.

    Raises:
        ScriptError: A file cannot be read, or a line is valid only on this computer.
    """
    if file.suffix == ".toml":
        return _read_project(file)
    lines = list(_lines(file, includes))
    return _requirements([line for line, is_pin in lines if not is_pin], [line for line, is_pin in lines if is_pin])


def _requirements(lines: list[str], constraints: list[str], note: str = "") -> Requirements:
    names = {match[1] for line in lines if (match := _NAME.match(line))}
    text, constraint_text = ("".join(line + "\n" for line in part) for part in (lines, constraints))
    return Requirements(text, constraint_text, frozenset(map(normalised, names)), note)


def _read_project(file: Path) -> Requirements:
    """Read ``[project].dependencies``, without packages that ``[tool.uv.sources]`` finds outside of an index."""
    tables = _read_toml(file)
    lines = _table(tables, "project").get("dependencies", [])
    valid = isinstance(lines, list) and all(isinstance(line, str) and is_requirement(line) for line in lines)
    if not valid:
        raise ScriptError(
            f"{file}: [project].dependencies is not a list of requirements that every host can install",
            hint="correct it, or leave it out with --no-requirements",
            again={"--no-requirements": True, "--requirements": None},
        )
    if not lines:
        poetry = _table(tables, "tool", "poetry", "dependencies")
        export = f"poetry export -f {REQUIREMENTS} -o {REQUIREMENTS} --without-hashes"
        note = f"{file.name}: [tool.poetry.dependencies] is not read; install it with: {export}" if poetry else ""
        return Requirements("", note=note)
    sources = _table(tables, "tool", "uv", "sources")
    elsewhere = {normalised(name) for name in sources if "index" not in _table(sources, name)}
    left_out = [line for line in lines if (match := _NAME.match(line)) and normalised(match[1]) in elsewhere]
    note = f"installing the dependencies of {file.name}"
    if left_out:
        note += f", without {', '.join(left_out)}: [tool.uv.sources] is not read"
    lock = file.with_name(LOCK)
    constraints = list(_locked(lock)) if lock.is_file() else []
    if constraints:
        note += f", in the versions of {LOCK}"
    return _requirements([" ".join(line.split()) for line in lines if line not in left_out], constraints, note)


def _locked(lock: Path) -> Iterator[str]:
    """Yield a constraint for each package of uv.lock that is from an index.

    A package with several versions has one for each environment that uv distinguishes.
    """
    packages = _read_toml(lock).get("package")
    packages = packages if isinstance(packages, list) else []
    indexed = [table for table in map(_table, packages) if "registry" in _table(table, "source")]
    versions = Counter(str(table.get("name")) for table in indexed)
    for table in indexed:
        name, markers = str(table.get("name")), table.get("resolution-markers")
        line = f"{name}=={table.get('version', '')}"
        if isinstance(markers, list) and markers:
            line += f" ; {' or '.join(f'({marker})' for marker in markers)}"
        if is_requirement(line) and (markers or versions[name] == 1):
            yield line


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return parse_toml(_text(file))
    except (ValueError, RecursionError) as error:
        raise ScriptError(
            f"{file} cannot be read",
            cause=str(error),
            hint="correct it, or leave it out with --no-requirements",
            again={"--no-requirements": True, "--requirements": None},
        ) from error


def _table(value: object, *keys: str) -> dict[str, Any]:
    """Return the table at a path of keys; empty if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _lines(file: Path, includes: bool, above: tuple[Path, ...] = ()) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a file and of those that it includes, each with whether it is a constraint."""
    if file.resolve() in above or len(above) > _DEEPEST:
        raise ScriptError(f"{file} includes itself", hint="remove one of the lines that begin with -r or -c")
    for number, line in _joined(_text(file)):
        location = f"{file}:{number}"
        option = _OPTION.match(line)
        name, value = (option[1], _unquoted(option[2])) if option else ("", line)
        if name not in _INCLUDES + _CONSTRAINS or ("://" in value and not value.startswith("file:")):
            _check(location, name, value, file.parent)
            yield line, False
            continue
        if not includes:
            raise ScriptError(f"{location}: it must not include a file of this computer: {value:.200}")
        if not value or not (file.parent / value).is_file():
            problem = f"file {value!r} does not exist" if value else "the option requires a file name"
            raise ScriptError(f"{location}: {problem}", hint="correct the line")
        for included, is_pin in _lines(file.parent / value, includes, (*above, file.resolve())):
            yield included, is_pin or name in _CONSTRAINS


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines without comments, with their numbers; a backslash joins lines."""
    begun, number = "", 0
    for count, line in enumerate(_LINES.split(text), 1):
        number = number if begun else count
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            begun += line[:-1]
            continue
        whole = _COMMENT.sub("", begun + line).strip()
        begun = ""
        if whole:
            yield number, whole
    if begun.strip():
        yield number, begun.strip()


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ScriptError(f"the requirements file {file} does not exist", hint="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ScriptError(f"{file} cannot be read", cause=(cause or "").lower()) from error


def _unquoted(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError:
        return text
    return words[0] if len(words) == 1 else text


def _check(location: str, option: str, value: str, directory: Path) -> None:
    """Reject packages on this computer: the hosts do not have them."""
    if option in _LOCATION_OPTIONS:
        is_local, hint = "://" not in value or value.startswith("file:"), "name a URL that the hosts reach"
    else:
        hint = (
            "put the package's directory next to the script, which is uploaded with it, and remove the line; "
            "or name it by a URL"
        )
        is_editable = option in _EDITABLE
        is_local = "+" not in value.partition("://")[0] if is_editable else not option and _is_local(value, directory)
        value = f"-e {value}" if is_editable else value
    if is_local:
        raise ScriptError(f"{location}: {value} is on this computer, and the hosts do not have it", hint=hint)


def _is_local(requirement: str, directory: Path) -> bool:
    words = requirement.split(";", maxsplit=1)[0].split(" --", maxsplit=1)[0].strip()
    url = words.partition("@")[2].strip()
    if "://" in words:
        return words.startswith("file:") or url.startswith("file:")
    plain = re.sub(r"\[[^\]]*\]$", "", words)
    is_path = plain.startswith((".", "/", "~")) or url.startswith((".", "/")) or "\\" in plain
    return is_path or bool(_ARCHIVE.search(words)) or ("/" in plain and (directory / plain).exists())
