"""Read the environment variables that the user gives to the script: --env, --env-file, --secret."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fleet.errors import UsageError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _check_name(name: str, source: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a name of a variable ({source})", hint="write it as NAME=VALUE")
    if name == "TF_CONFIG":
        raise UsageError(
            "TF_CONFIG is set by fleet, for each worker differently",
            hint="leave it out; --dry-run shows what each worker gets",
        )
    return name


def _read(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read {option} {path}", cause=reason or "", hint="check the path") from error


def _file_variables(path: Path) -> dict[str, str]:
    variables = {}
    for number, line in enumerate(_read(path, "--env-file").splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, separator, value = text.removeprefix("export ").partition("=")
        if not separator:
            raise UsageError(f"{path}, line {number}: no NAME=VALUE", hint="write one variable a line")
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        variables[_check_name(name.strip(), f"{path}, line {number}")] = value
    return variables


def environment(given: Sequence[str], files: Sequence[str], here: Mapping[str, str]) -> dict[str, str]:
    """Return the script's variables: those of the files, overridden by those in `given`.

    Args:
        given: ``K=V``, or ``K`` alone for its value in `here`.
        files: Files with one ``K=V`` per line; empty lines and lines that begin with # are skipped.
        here: The environment of this program.

    Raises:
        UsageError: a name is malformed or not set here, or a file cannot be read.
    """
    variables: dict[str, str] = {}
    for file in files:
        variables.update(_file_variables(Path(file).expanduser()))
    for item in given:
        name, separator, value = item.partition("=")
        _check_name(name, "--env")
        if not separator and name not in here:
            raise UsageError(
                f"--env {name}: the variable is not set here",
                hint=f"give its value, --env {name}=VALUE, or set it here first: export {name}=VALUE",
            )
        variables[name] = value if separator else here[name]
    return variables


def withheld(given: Sequence[str], files: Sequence[str]) -> tuple[str, ...]:
    """Return the files that hold secrets, from --secret K=@FILE and --env-file: they must not be uploaded.

    Args:
        given: Values of --secret.
        files: Values of --env-file.
    """
    sources = [source[1:] for _, _, source in (item.partition("=") for item in given) if source.startswith("@")]
    return tuple(str(Path(path).expanduser()) for path in (*sources, *files))


def secrets(given: Sequence[str], here: Mapping[str, str]) -> dict[str, str]:
    """Return the script's secret variables; their values never appear on a command line.

    Args:
        given: ``K`` for its value in `here`, or ``K=@FILE`` for the content of a file.
        here: The environment of this program.

    Raises:
        UsageError: a value is on the command line, a variable is not set here, or its file cannot be read.
    """
    variables = {}
    for item in given:
        name, separator, source = item.partition("=")
        _check_name(name, "--secret")
        if separator and not source.startswith("@"):
            raise UsageError(
                f"--secret {name} has its value on the command line, where every user of this computer can read it",
                hint=f"set the variable here and give --secret {name}, or keep it in a file: --secret {name}=@FILE",
            )
        if separator:
            variables[name] = _read(Path(source[1:]).expanduser(), f"--secret {name}").rstrip("\n")
        elif name in here:
            variables[name] = here[name]
        else:
            raise UsageError(
                f"--secret {name}: the variable is not set here",
                hint=f"set it first, export {name}=…, or keep it in a file: --secret {name}=@FILE",
            )
    return variables
