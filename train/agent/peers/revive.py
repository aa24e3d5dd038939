"""Start hosts again that their cloud has stopped, from a surviving host of the job.

A process of the leading supervisor calls the API of Compute Engine with the token of the instance's service account,
which needs two permissions: ``compute.instances.get`` and ``compute.instances.start``. It reads the names of the lost
slots from its input, and ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

SERVER = "fleet-restarts"
"""Metadata item of an instance with the URL of the API."""
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 120.0
_STOP_AT = "fleet-stop-at"
_LAST_START_S = 300.0  # before the end of the fleet's lifetime: later, a host would be of no use
_TIMEOUT_S = 20.0
_TERMINATED = "TERMINATED"
_PROGRAM = "import sys; sys.path.insert(0, {agent!r}); from train.agent.peers.revive import main; main()"


class Reviver:
    """The supervisor's end of the process.

    Args:
        agent: Directory or archive of the agent.
        slot: The slot of this host.
        slots_per_host: Number of slots that each host has.

    Attributes:
        pid: ID of the process.
    """

    def __init__(self, agent: str, slot: str, slots_per_host: int) -> None:
        import subprocess

        self._per_host = max(1, slots_per_host)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM.format(agent=agent)], stdin=subprocess.PIPE, cwd="/"
        )
        self._last: List[str] = []
        self._own = self._host_of(slot)
        self.pid = self._process.pid

    def _host_of(self, slot: str) -> str:
        kind, _, index = slot.rpartition("-")
        return f"{kind}-{int(index) // self._per_host}"

    def update(self, slots: Sequence[str]) -> None:
        """Set the slots whose hosts are lost; an error of the process is ignored, as the job continues without it."""
        lost = sorted({self._host_of(slot) for slot in slots} - {self._own})
        if lost == self._last or self._process.stdin is None:
            return
        self._last = lost
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps([self._own, lost]).encode() + b"\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._process.kill()


class Try(NamedTuple):
    """The tries to start one host.

    Attributes:
        at: Time of the next one, of a monotonic clock.
        pause_s: Pause after it.
        starts: Number of starts since the host stopped.
    """

    at: float
    pause_s: float = FIRST_PAUSE_S
    starts: int = 0

    def again(self, now: float, started: bool) -> "Try":
        """Return the next try, twice as late as this one was."""
        pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)
        return Try(now + self.pause_s, pause_s, self.starts + started)


def plan(tries: Dict[str, Try], lost: Sequence[str], now: float) -> Dict[str, Try]:
    """Return the tries for the hosts that are lost now; the first one is due after a pause."""
    return {name: tries.get(name) or Try(now + FIRST_PAUSE_S) for name in lost}


def main() -> None:
    """Start the hosts that lines on stdin name, until it ends."""
    cloud = Cloud(os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal")
    tries: Dict[str, Try] = {}
    local, data = "", b""
    while True:
        now = time.monotonic()
        wait_s = min((due.at - now for due in tries.values()), default=None)
        if select.select([0], [], [], None if wait_s is None else max(0.0, wait_s))[0]:
            piece = os.read(0, 1 << 16)
            if not piece:
                return
            *lines, data = (data + piece).split(b"\n")
            if lines:
                local, lost = json.loads(lines[-1])
                tries = plan(tries, lost, time.monotonic())
        for name, due in list(tries.items()):
            if due.at <= time.monotonic():
                tries[name] = due.again(time.monotonic(), _start(cloud, local, name, due.starts))


def _start(cloud: "Cloud", local: str, name: str, count: int) -> bool:
    """Start a host if it is stopped; report whether it was, and errors in the log of the agent."""
    try:
        return cloud.start(local, name, count)
    except (OSError, ValueError, LookupError) as error:
        os.write(2, f"{name} could not be started again: {error}\n".encode("utf-8", "backslashreplace"))
        return False


def _is_nearly_over(stop_at: str) -> bool:
    """Return whether a lifetime, whose end is given in seconds since the epoch, is nearly over; ``0``: never."""
    return bool(int(stop_at)) and time.time() > int(stop_at) - _LAST_START_S


class Cloud:
    """The API of Compute Engine, as an instance calls it.

    Args:
        metadata: Name or address of the metadata server.
    """

    def __init__(self, metadata: str) -> None:
        self._metadata = f"http://{metadata}/computeMetadata/v1/"
        self._token = ("", 0.0)

    def start(self, local: str, name: str, count: int) -> bool:
        """Start the instance of a host, unless it runs, the fleet was stopped, or its lifetime is nearly over.

        Several hosts that do this at the same time send the same request ID, so that Compute Engine starts the
        instance only once.

        Args:
            local: Name of this host within the fleet.
            name: Name of the other host.
            count: Number of starts that were tried since it stopped.

        Returns:
            Whether it was stopped.

        Raises:
            OSError: the metadata server or the API refuses it, or capacity is missing.
            ValueError: an answer cannot be read.
        """
        import uuid

        stop_at = self._read(f"instance/attributes/{_STOP_AT}", "0")
        if _is_nearly_over(stop_at):
            return False
        base = self._read("instance/name")[: -len(local)]
        zone, project = self._read("instance/zone").rpartition("/")[2], self._read("project/project-id")
        server = self._read(f"instance/attributes/{SERVER}")
        url = f"{server}/compute/v1/projects/{project}/zones/{zone}/instances/{base}{name}"
        instance = self._call(url)
        items = {item.get("key"): item.get("value", "") for item in instance.get("metadata", {}).get("items", ())}
        if (
            instance.get("status") != _TERMINATED
            or SERVER not in items
            or _is_nearly_over(items.get(_STOP_AT) or "0")
        ):
            return False
        key = f"{instance.get('id')} {instance.get('lastStopTimestamp')} {count}"
        self._call(f"{url}/start?requestId={uuid.uuid5(uuid.NAMESPACE_URL, key)}", b"")
        return True

    def _read(self, path: str, default: Optional[str] = None) -> str:
        try:
            return _fetch(self._metadata + path, {"Metadata-Flavor": "Google"}).decode()
        except OSError:
            if default is None:
                raise
            return default

    def _call(self, url: str, body: Optional[bytes] = None) -> Dict[str, Any]:
        token, expires_at = self._token
        if time.monotonic() > expires_at:
            granted = json.loads(self._read("instance/service-accounts/default/token"))
            token, expires_at = str(granted["access_token"]), time.monotonic() + float(granted["expires_in"]) - 60
            self._token = token, expires_at
        answer = json.loads(_fetch(url, {"Authorization": f"Bearer {token}"}, body))
        if not isinstance(answer, dict):
            raise ValueError("the answer is not an object")
        return answer


def _fetch(url: str, headers: Dict[str, str], body: Optional[bytes] = None) -> bytes:
    """Return the body of a response.

    Raises:
        OSError: the request was not answered, or the answer has an error status.
    """
    from urllib.request import ProxyHandler, Request, build_opener

    opener = build_opener(ProxyHandler({}))
    with opener.open(Request(url, body, headers), timeout=_TIMEOUT_S) as answer:  # noqa: S310 - of the metadata
        return bytes(answer.read())
