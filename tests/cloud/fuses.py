"""Ends of a program at one of its calls, calls that arrive after its end, and changes of the cloud between calls."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

import pytest
import requests

from fleet.state import Store
from tests.emulator import Emulator
from tests.emulator.messages import Broken, Request

DELAY_S = 0.3
"""Delay of a call after its intent; programs of histories have to expect a longer one."""
_CREATING = ("/bulkInsert", "/instances?", "/firewalls?", "/resourcePolicies?", "/images?", "/start?")


class Killed(BaseException):
    """The program was killed; no code catches this."""


@dataclass
class Delayed:
    """Calls of ended programs that have not arrived.

    Attributes:
        calls: The time at which each arrives, and what sends it.
        arrived: Number of calls that have arrived.
        clock: Returns the time in seconds since the epoch.
    """

    calls: list[tuple[float, Callable[[], requests.Response]]] = field(default_factory=list)
    arrived: int = 0
    clock: Callable[[], float] = time.time
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Let each call arrive at its time, however slow this machine is, and not only before the next call."""
        for at, _ in self.calls:
            threading.Timer(max(0.0, at - self.clock()), self.arrive, [at]).start()

    def arrive(self, until: float = float("inf")) -> None:
        """Let the calls arrive that are due until a time."""
        with self._lock:
            due = [call for at, call in self.calls if at <= until]
            self.calls = [(at, call) for at, call in self.calls if at > until]
        for call in due:
            self.arrived += 1
            with contextlib.suppress(requests.RequestException):  # a fault of the history
                call().close()


@dataclass
class Fuse:
    """Ends the program before or after one of its calls, and changes the cloud before others.

    Attributes:
        left: Number of calls until it ends the program; negative: never.
        after: Whether the call of its end has an effect, whose answer the program does not see.
        error: How the program ends.
        arrives_at: Returns the time at which the call of its end arrives; None: it does not arrive later. If it does,
            only calls that create or start something count.
        delayed: The calls of programs that ended before.
        acts: Changes of the cloud by the number of the call before which they happen.
    """

    left: int = -1
    after: bool = False
    error: type[BaseException] = Killed
    arrives_at: Callable[[], float] | None = None
    delayed: Delayed = field(default_factory=Delayed)
    acts: dict[int, Callable[[], object]] = field(default_factory=dict)
    sent: int = field(default=0, init=False)

    def __str__(self) -> str:
        """Return it as a clause about a command."""
        when = "with a delay of" if self.arrives_at else "after" if self.after else "before"
        end = f"{self.error.__name__} {when} call {self.left}" if self.left > 0 else "nothing ends it"
        return end + "".join(f", change before call {number}" for number in self.acts)

    def send(self, original: Any, session: Any, request: Any, **options: Any) -> Any:
        if not request.url.startswith("http://127.0.0.1") or "/skus?" in request.url:  # of a background thread
            return original(session, request, **options)
        self.delayed.arrive(self.delayed.clock())
        self.sent += 1
        if act := self.acts.pop(self.sent, None):
            act()
        counts = not self.arrives_at or _creates(request)
        self.left -= counts
        if self.left != 0 or not counts:
            return original(session, request, **options)
        if self.arrives_at:
            self.delayed.calls.append((self.arrives_at(), lambda: original(session, request, **options)))
        elif self.after:
            original(session, request, **options).close()
        raise self.error


def _creates(request: Any) -> bool:
    """Return whether a call creates or starts instances, or creates other resources."""
    return request.method == "POST" and any(word in request.url for word in _CREATING)


def arrival(store: Store) -> float:
    """Return the time at which a call arrives whose intent was the last one of any fleet of a state directory."""
    stores = (store, store.baking)
    entries = [each for every in stores for name in every.names() for each in every.fleet(name).intents()]
    return max((float(each.get("at", 0.0)) for each in entries), default=0.0) + DELAY_S


def sending(emulator: Emulator) -> Callable[..., requests.Response]:
    """Return a substitute for requests.Session.send that asks an emulator of this process directly, without HTTP."""

    def send(session: requests.Session, request: Any, **_: Any) -> requests.Response:
        if not request.url.startswith(emulator.url):
            raise requests.ConnectionError("histories use no network")
        headers = {name.lower(): str(value) for name, value in request.headers.items()}
        body = request.body or b""
        response = requests.Response()
        try:
            answer = emulator.answer(
                Request(
                    request.method,
                    request.url.removeprefix(emulator.url),
                    body if isinstance(body, bytes) else body.encode(),
                    token=headers.get("authorization", "").removeprefix("Bearer "),
                    headers=headers,
                )
            )
        except Broken as broken:
            raise requests.ConnectionError(str(broken)) from None
        shown = {"Content-Type": "application/json", "Date": formatdate(emulator.clock.now(), usegmt=True)}
        response.headers.update({**shown, **answer.headers})
        response.status_code, response.url, response.request = answer.status, request.url, request
        response.raw = io.BytesIO(answer.body)
        return response

    return send


@contextlib.contextmanager
def fused(fuse: Fuse, patch: pytest.MonkeyPatch) -> Iterator[None]:
    original = requests.Session.send
    with patch.context() as inner:
        inner.setattr(
            requests.Session,
            "send",
            lambda session, request, **options: fuse.send(original, session, request, **options),
        )
        yield
