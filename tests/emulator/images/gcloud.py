"""A stand-in for gcloud on the caller's computer: tunnels of the emulator's proxy, access tokens, and quotas.

It starts for each connection, so it imports little. FLEET_GCE_ENDPOINT has the emulator's URL, and the file `account`
next to this program the account that is logged in.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from json import dumps, loads
from pathlib import Path
from typing import Any

_NOT_LOGGED_IN = """\
ERROR: (gcloud.%s) You do not currently have an active account selected.
Please run:

  $ gcloud auth login

to obtain new credentials.
"""
_BLOCK = 1 << 16


def main(words: list[str]) -> int:
    """Run a command; return its exit code."""
    command = next((each for each in _COMMANDS if words[: len(each)] == list(each)), None)
    if command is None:
        sys.stderr.write(f"ERROR: (gcloud) Invalid choice: {words!r}\n")
        return 2
    account = Path(sys.argv[0]).with_name("account")
    if not account.exists():
        sys.stderr.write(_NOT_LOGGED_IN % ".".join(command))
        return 1
    return _COMMANDS[command](f"emulated:{account.read_text()}", words[len(command) :])


def _print_token(token: str, words: list[str]) -> int:
    sys.stdout.write(f"{token}\n")
    return 0


def _print_account(token: str, words: list[str]) -> int:
    sys.stdout.write(f"{token.removeprefix('emulated:')}\n")
    return 0


def _request_quota(token: str, words: list[str]) -> int:
    """Request a quota, which is granted at once."""
    assert words[-1].startswith("--email="), words
    options = dict(zip(words[:-1:2], words[1::2], strict=True))
    assert (options.pop("--service"), options.pop("--project")) == ("compute.googleapis.com", "proj-1"), words
    quota, region = options.pop("--quota-id"), options.pop("--dimensions", "").removeprefix("region=")
    end = "-per-project-region" if region else "-per-project"
    assert quota.endswith(end), words
    metric = quota.removesuffix(end).replace("-", "_")
    _post(token, {"metric": metric, "limit": float(options.pop("--preferred-value")), "region": region}, "quota")
    assert not options, words
    return 0


def _open_tunnel(token: str, words: list[str]) -> int:
    options = dict(word.removeprefix("--").partition("=")[::2] for word in words if word.startswith("--"))
    instance, port = (word for word in words if not word.startswith("--"))
    assert options.keys() == {"listen-on-stdin", "project", "zone"}, words
    answer = _post(token, {"instance": instance, "port": int(port), "zone": options["zone"]})
    if "address" not in answer:
        reason = f"{answer['code']}: {answer['reason']!r}"
        sys.stderr.write(f"ERROR: (gcloud.compute.start-iap-tunnel) Error while connecting [{reason}].\n")
        return 1
    with socket.create_connection((answer["address"], int(port)), timeout=10) as connection:
        _relay(connection)
    return 0


def _post(token: str, body: dict[str, Any], path: str = "tunnel") -> dict[str, Any]:
    host, _, port = os.environ["FLEET_GCE_ENDPOINT"].removeprefix("http://").rstrip("/").partition(":")
    content = dumps(body).encode()
    head = (f"POST /emulator/{path} HTTP/1.0", f"Authorization: Bearer {token}", f"Content-Length: {len(content)}")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall("\r\n".join((*head, "", "")).encode() + content)
        answer = connection.makefile("rb").read()
    result: dict[str, Any] = loads(answer.partition(b"\r\n\r\n")[2])
    return result


def _relay(connection: socket.socket) -> None:
    """Copy in both directions until one side ends."""
    connection.settimeout(None)
    while True:
        readable, _, _ = select.select([0, connection.fileno()], [], [])
        if 0 in readable:
            block = os.read(0, _BLOCK)
            if not block:
                return
            connection.sendall(block)
        if connection.fileno() in readable:
            block = connection.recv(_BLOCK)
            if not block:
                return
            while block:
                block = block[os.write(1, block) :]


_COMMANDS = {
    ("auth", "print-access-token"): _print_token,
    ("beta", "quotas", "preferences", "create"): _request_quota,
    ("compute", "start-iap-tunnel"): _open_tunnel,
    ("config", "get", "account"): _print_account,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
