"""Pack the agent into one file named by its hash, and build the command that starts it on a host.

The protocol on the channel of that command:

1. The host's first line is the agent's Hello, or ``need-agent`` if it does not have this agent yet. Then the
   client writes the number of bytes in decimal, a newline, and the compressed archive; Hello comes after that.
2. Or the first line is also the last: ``bootstrap-failed REASON`` (exit code 4). From the agent itself
   ``python-too-old 3.8.1`` (exit code 3) can come instead of Hello.
3. Then the conversation of train.agent.protocol.records.
"""

from __future__ import annotations

import hashlib
import io
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
# Stores the agent that the client sends, compressed, and checks its hash; the arguments are the size and the hash.
_RECEIVE = (
    "import hashlib, sys, zlib; "
    "data = zlib.decompress(sys.stdin.buffer.read(int(sys.argv[1]))); "
    "sys.stdout.buffer.write(data); "
    "sys.exit(not hashlib.sha256(data).hexdigest() == sys.argv[2])"
)
# For sh; the arguments are the interpreter, and those of train.agent.requests.serve. Any login shell, including fish
# and csh, passes it on unchanged: it has no single quotes, backslashes, newlines, or exclamation marks.
_START = " ".join(
    (
        "python=$1; shift;",
        "agents=${FLEET_AGENTS:-$1/agent}; unset FLEET_AGENTS; agent=$agents/$2; new=;",
        'tool() ( PATH=$PATH:/usr/bin:/bin; "$@" );',  # the PATH of a host may have the interpreter only
        'fail() { tool rm -f "$new"; echo "bootstrap-failed $1"; exit 4; };',
        '[ -d "$1" ] || error=$(umask 077; tool mkdir -p "$1" 2>&1) || fail "$error";',
        '[ -d "$agent" ] || {',
        '"$python" -V >/dev/null || exit;',  # the shell reports a missing interpreter
        "echo need-agent; read -r size || exit 4;",
        'error=$(umask 077; tool mkdir -p "$agents" 2>&1) || fail "$error";',
        'error=$(tool mktemp "$agent.XXXXXX" 2>&1) || fail "$error"; new=$error;',
        f'error=$("$python" -I -S -c "{_RECEIVE}" "$size" "$2" 2>&1 >"$new") || case $error in',
        '*OSError*) fail "$(echo "$error" | tool tail -n 1)";;',
        '*) fail "the agent arrived damaged";; esac;',
        'error=$(tool mv -f "$new" "$agent.pyz" 2>&1) || fail "$error";',
        "agent=$agent.pyz; };",
        'exec "$python" -I -S "$agent" "$@"',
    )
)


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
    paths = (train / "__init__.py", train / "defaults.py", *(train / "agent").rglob("*.py"))
    sources = {path.relative_to(train.parent).as_posix(): path.read_bytes() for path in paths}
    sources["__main__.py"] = sources.pop("train/agent/__main__.py")  # Python runs it if it runs the archive
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
    return _command(python, root, [digest, *([shared] if shared else [])])


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
    return _command(python, root, [digest, shared, *task, *program])


def _command(python: str, root: str, arguments: Sequence[str]) -> str:
    program = _from_login(python) if python.startswith("~/") else shlex.quote(python)
    return " ".join(
        ["exec", "/bin/sh", "-c", shlex.quote(_START), "sh", program, _from_login(root), *map(shlex.quote, arguments)]
    )


def _from_login(path: str) -> str:
    """Return a path, quoted for any shell; it is relative to the login directory unless absolute."""
    return shlex.quote(path) if path.startswith("/") else '"$HOME"/' + shlex.quote(path.removeprefix("~/"))
