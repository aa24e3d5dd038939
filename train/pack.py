"""Pack the agent into one file named by its hash, and build the command that starts it on a host.

The protocol on the channel of that command:

1. The host's first line is the agent's Hello, or ``need-agent`` if it does not have this agent yet. Then the
   client writes the number of bytes in decimal, a newline, and the compressed archive; Hello comes after that.
2. Or the first line is also the last: ``python-too-old 3.8.1`` (exit code 3), or ``bootstrap-failed REASON`` (exit
   code 4).
3. Then the conversation of train.agent.protocol.records.

train.start_agent is the program in that command; it reads exactly these bytes from stdin.
"""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import zipfile
import zlib
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from threading import Lock
from typing import NamedTuple

NEED_AGENT = b"need-agent"
TOO_OLD = b"python-too-old"
FAILED = b"bootstrap-failed"

_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = b"from train.agent.requests.serve import main\n\nmain()\n"


class AgentArchive(NamedTuple):
    """The agent as one file.

    Attributes:
        data: A zip archive that Python runs.
        digest: Its SHA-256, hexadecimal.
    """

    data: bytes
    digest: str


@cache
def build_agent() -> AgentArchive:
    """Pack the agent of this program; the same sources always give the same bytes."""
    train = Path(__file__).parent
    sources = {"__main__.py": _MAIN, "train/__init__.py": (train / "__init__.py").read_bytes()}
    for path in (train / "defaults.py", *(train / "agent").rglob("*.py")):
        sources[path.relative_to(train.parent).as_posix()] = path.read_bytes()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in sorted(sources):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3  # Unix
            info.external_attr = 0o644 << 16
            archive.writestr(info, sources[name])
    data = packed.getvalue()
    return AgentArchive(data, hashlib.sha256(data).hexdigest())


def upload(data: bytes) -> bytes:
    """Return what the client writes to a host that needs the agent; compressing it takes longer than packing it.

    Args:
        data: The archive.
    """
    with _COMPRESSING:  # several threads need it at once
        packed = _compress(data)
    return b"%d\n" % len(packed) + packed


_COMPRESSING = Lock()
_compress = lru_cache(maxsize=1)(zlib.compress)


def bootstrap_command(python: str, root: str, digest: str, shared: str = "") -> str:
    """Return the shell command that starts the agent on a host.

    Args:
        python: Interpreter that runs the agent; a name is looked up on the host's PATH.
        root: Directory of fleet's files on the host; relative to the login directory unless absolute.
        digest: Hash of the agent, from `build_agent`.
        shared: Directory of the host if `root` is one of its slots; empty: the host has one slot.
    """
    return _command(python, [root, digest, *([shared] if shared else [])])


def enter_command(
    python: str, root: str, digest: str, shared: str, task: tuple[str, str], program: Sequence[str]
) -> str:
    """Return the shell command that runs a program in the directory and the environment of a task.

    Args:
        python: As for `bootstrap_command`, like the following arguments; the host has the agent.
        root: Directory of fleet's files on the host.
        digest: Hash of the agent.
        shared: Directory of the host if `root` is one of its slots.
        task: The job and the slot.
        program: The program and its arguments; empty: a shell.
    """
    return _command(python, [root, digest, shared, *task, *program])


def _command(python: str, arguments: Sequence[str]) -> str:
    text = Path(__file__).with_name("start_agent.py").read_text(encoding="ascii")
    words = ["-I", "-S", "-c", f"exec({json.dumps(text)})", *arguments]
    return " ".join(["exec", _program(python), *map(shlex.quote, words)])


def _program(python: str) -> str:
    return '"$HOME"' + shlex.quote(python[1:]) if python.startswith("~/") else shlex.quote(python)
