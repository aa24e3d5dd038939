"""Pack the agent into one file named by its hash, and build the command that starts it on a host.

The protocol on the channel of that command:

1. The host's first line is the agent's Hello, or ``want-agent`` if it does not have this agent yet. Then the
   client writes the number of bytes in decimal, a newline, and the archive; Hello comes after that.
2. Or the first line is also the last: ``python-too-old 3.8.1`` (exit code 3), or ``bootstrap-failed REASON`` (exit
   code 4).
3. Then the conversation of train.agent.protocol.records.

The bootstrap reads exactly these bytes from stdin.
"""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import zipfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

WANT_AGENT = b"want-agent"
TOO_OLD = b"python-too-old"
FAILED = b"bootstrap-failed"

_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = b"from train.agent.requests.serve import main\n\nmain()\n"

# Every version of Python 3 can read it. It has no single quotes, backslashes or exclamation marks, so that any login
# shell, including fish and csh, passes it on unchanged.
_BOOTSTRAP = """
import os, sys
version = "%d.%d.%d" % sys.version_info[:3]
def say(text):
    os.write(1, (text + chr(10)).encode("utf-8", "replace"))
def end(text, code):
    say(text)
    os._exit(code)
if sys.version_info < (3, 9):
    end("python-too-old " + version, 3)
import hashlib
def take(count):
    parts = []
    while count:
        part = os.read(0, min(count, 1 << 18))
        if part == b"":
            os._exit(4)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
def proven(data):
    return hashlib.sha256(data).hexdigest() == sys.argv[2]
def receive():
    say("want-agent")
    line = take(1)
    while not line.endswith(bytes([10])):
        line += take(1)
    data = take(int(line))
    if not proven(data):
        end("bootstrap-failed the agent arrived damaged", 4)
    os.makedirs(sys.argv[1], 0o700, True)
    os.makedirs(os.path.dirname(name), 0o700, True)
    new = "%s.%d.new" % (archive, os.getpid())
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    os.replace(new, archive)
def unpack():
    try:
        os.umask(0o077)
        sys.path.insert(0, archive)
        from train.agent.files.unpack import unpack
        unpack(archive, name)
    finally:
        os._exit(0)
try:
    sys.argv[1] = os.path.join(os.path.expanduser("~"), sys.argv[1])
    name = os.path.join(sys.argv[1], "agent", sys.argv[2])
    archive = name + ".pyz"
    try:
        with open(archive, "rb") as file:
            if not proven(file.read()):
                receive()
    except FileNotFoundError:
        receive()
    if not os.path.isdir(name):
        child = os.fork()
        if child == 0:
            unpack()
        os.waitpid(child, 0)
    sys.path.insert(0, name if os.path.isdir(name) else archive)
except (OSError, ValueError) as error:
    end("bootstrap-failed " + str(error), 4)
from train.agent.requests.serve import main
main()
"""


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
    for path in (train / "agent").rglob("*.py"):
        sources[path.relative_to(train.parent).as_posix()] = path.read_bytes()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in sorted(sources):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3  # Unix
            info.external_attr = 0o644 << 16
            archive.writestr(info, sources[name])
    data = packed.getvalue()
    return AgentArchive(data, hashlib.sha256(data).hexdigest())


def bootstrap_command(python: str, root: str, digest: str, shared: str = "") -> str:
    """Return the shell command that starts the agent on a host.

    Args:
        python: Interpreter that runs the agent; a name is looked up on the host's PATH.
        root: Directory of fleet's files on the host; relative to the login directory unless absolute.
        digest: Hash of the agent, from `build_agent`.
        shared: Directory of the host if `root` is one of its slots; empty: the host has one slot.
    """
    source = f"exec({json.dumps(_BOOTSTRAP.strip())})"
    words = ["-I", "-S", "-c", source, root, digest, *([shared] if shared else [])]
    return " ".join(["exec", _program(python), *map(shlex.quote, words)])


def _program(python: str) -> str:
    return '"$HOME"' + shlex.quote(python[1:]) if python.startswith("~/") else shlex.quote(python)
