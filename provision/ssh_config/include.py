"""An Include line at the top of an OpenSSH configuration, so that it applies to all hosts; ssh_config(5)."""

from __future__ import annotations

import re
import secrets
import stat
from pathlib import Path

from provision.directories import make_directory

_PLAIN = re.compile(r"[\w/.~+@:,=* -]+", re.ASCII)
_NEW_MODE = 0o600


def include_line(pattern: Path) -> str:
    """Return the line that includes all files which match `pattern`.

    Raises:
        ValueError: the path has a character that some versions of ssh would expand.
    """
    text = str(pattern)
    if not _PLAIN.fullmatch(text):
        raise ValueError(f"the path {text!r} cannot be included in an SSH configuration")
    return f'Include "{text}"' if " " in text else f"Include {text}"


def install_include(file: Path, line: str) -> bool:
    """Put `line` at the top of a configuration, and nowhere else; return whether it changed.

    The file is created if it does not exist.

    Raises:
        OSError: the file cannot be read or written.
    """
    make_directory(file.parent)
    return _replace(file, line.encode() + b"\n" + _without(file, line))


def remove_include(file: Path, line: str) -> bool:
    """Remove `line` from a configuration; return whether it changed.

    Raises:
        OSError: the file cannot be read or written.
    """
    return _replace(file, _without(file, line))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""


def _without(file: Path, line: str) -> bytes:
    """Return the content of a file without `line`; everything else is kept byte for byte."""
    return b"".join(kept for kept in _read(file).splitlines(keepends=True) if kept.strip() != line.encode())


def _replace(file: Path, content: bytes) -> bool:
    """Replace the content of a file atomically; keep its permissions, and a link to it."""
    if content == _read(file):
        return False
    target = file.resolve()
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else _NEW_MODE
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        fresh.touch(mode=_NEW_MODE, exist_ok=False)
        fresh.chmod(mode)
        fresh.write_bytes(content)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)
    return True
