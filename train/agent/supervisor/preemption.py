"""Read the notices of a cloud from its HTTP server: the host is about to be taken, or its jobs must end at a time.

The providers declare the servers; a host polls the one that its cloud has.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple, Optional, Sequence, Tuple

from train.agent.files.disk import read_text
from train.agent.host.loop import READ, Loop
from train.agent.host.spawn import fork_helper
from train.agent.protocol.records import PreemptionNotice
from train.agent.protocol.strict_json import JsonError, parse_json

if TYPE_CHECKING:
    from email.message import Message

_PRODUCT = "/sys/class/dmi/id/product_name"
_SCHEME = "http://"
# The metadata of an instance on Compute Engine has up to 512 KiB; in JSON, each byte takes up to 6.
# Source: https://cloud.google.com/compute/docs/metadata/setting-custom-metadata (limitations)
_LONGEST_ANSWER = 1 << 22  # bytes
_LONGEST_TIME = 12  # digits of seconds since the epoch
_OK = 200


def find_notice(
    notices: Sequence[PreemptionNotice], environment: Mapping[str, str], product: str = _PRODUCT
) -> Optional[PreemptionNotice]:
    """Return the notice of this host's cloud with the server to poll, or None if there is none.

    Args:
        notices: As providers declare them.
        environment: Of the session; a variable in it may replace the server.
        product: File with the product name of the host.
    """
    name = read_text(product).strip()
    for notice in notices:
        server = environment.get(notice.variable, "").strip()
        if server:
            return notice._replace(url=f"{_SCHEME}{server}/{notice.url[len(_SCHEME) :].partition('/')[2]}")
        if notice.product == name:
            return notice
    return None


class PollTiming(NamedTuple):
    """Times of the requests, in seconds."""

    poll_s: int = 300  # the server responds after this time although the value has not changed
    answer_s: float = 10.0  # longest time until a response, in addition to poll_s
    retry_s: float = 0.5  # pause after the first failure; doubled after each further one
    longest_retry_s: float = 60.0


_TIMING = PollTiming()


class Notices(NamedTuple):
    """The notices in a response."""

    preempted: bool = False
    end_in_s: Optional[float] = None  # until all jobs must have ended, by the server's clock; None: never


def read_notices(notice: PreemptionNotice, date: str, body: str) -> Notices:
    """Return the notices in a response; values that are missing or invalid count as no notice.

    Args:
        notice: Of the cloud.
        date: Header of the response; without a valid one, the clock of the host counts, which may be wrong.
        body: A JSON object.
    """
    from email.utils import parsedate_to_datetime

    try:
        content = parse_json(body)
    except JsonError:
        return Notices()
    try:
        now = parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        now = time.time()
    end_at = _find(content, notice.end_key)
    is_end = len(end_at) <= _LONGEST_TIME and end_at.isdecimal() and int(end_at) > 0
    preempted = _find(content, notice.key).upper() == notice.value.upper()
    return Notices(preempted, int(end_at) - now if is_end else None)


def _find(content: Any, key: str) -> str:
    """Return the text at a path in an object; empty if there is none."""
    for name in key.split("/"):
        content = content.get(name) if isinstance(content, dict) else None
    return content if isinstance(content, str) else ""


def request(notice: PreemptionNotice, etag: str, timing: PollTiming = _TIMING) -> Tuple[Message, str]:
    """Return the headers and the body of a response; with `etag` the server responds when the value has changed.

    Raises:
        OSError: the server is not reached, or is silent.
        HTTPException, ValueError: its response is not valid.
    """
    import http.client

    server, _, path = notice.url[len(_SCHEME) :].partition("/")
    mark = "&" if "?" in path else "?"
    wait = f"{mark}{notice.wait.format(etag=etag, seconds=timing.poll_s)}" if etag else ""
    connection = http.client.HTTPConnection(server, timeout=timing.answer_s + (timing.poll_s if etag else 0))
    with contextlib.closing(connection):
        connection.request("GET", f"/{path}{wait}", headers=dict(notice.headers))
        response = connection.getresponse()
        body = response.read(_LONGEST_ANSWER + 1)
    is_true = all(response.headers[name] == value for name, value in notice.headers.items())
    if response.status != _OK or not is_true or len(body) > _LONGEST_ANSWER:
        raise ValueError("not an answer of the cloud")
    return response.headers, body.decode("latin-1").strip()


class NoticeWatch:
    """Poll a server for the notices of a cloud, in a process of its own.

    It is polled until the end of the job, also if it has not responded yet: it may be away for a while at the start.

    Args:
        loop: Event loop that serves it.
        notice: The server and its response.
        on_notices: Called with the notices of each response.
        timing: Times of the requests.

    Attributes:
        pid: The process.
    """

    def __init__(
        self,
        loop: Loop,
        notice: PreemptionNotice,
        on_notices: Callable[[Notices], None],
        timing: PollTiming = _TIMING,
    ) -> None:
        self._loop = loop
        self._on_notices = on_notices
        self._pipe, writes = os.pipe()
        self.pid = fork_helper(partial(_poll, notice, timing, writes), {writes})
        os.close(writes)
        loop.watch(self._pipe, READ, lambda _: self._read())

    def close(self) -> None:
        """Stop polling."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._loop.unwatch(self._pipe)
        os.close(self._pipe)

    def _read(self) -> None:
        lines = os.read(self._pipe, select.PIPE_BUF).splitlines()
        if not lines:
            self._loop.unwatch(self._pipe)
        for line in lines:
            self._on_notices(Notices(*json.loads(line)))


def _poll(notice: PreemptionNotice, timing: PollTiming, pipe: int) -> None:
    """Write the notices of each response to a pipe, forever; what is written at once is read at once."""
    import http.client

    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a host that shuts down may send it before the notice
    etag, failures = "", 0
    while True:
        try:
            headers, body = request(notice, etag, timing)
        except (OSError, ValueError, http.client.HTTPException):
            time.sleep(min(timing.longest_retry_s, timing.retry_s * 2.0 ** min(failures, 20)))
            etag, failures = "", failures + 1
            continue
        os.write(pipe, json.dumps(read_notices(notice, headers["date"] or "", body)).encode() + b"\n")
        # A server that cannot wait for a change is polled again after a pause.
        etag, failures = (headers["etag"] or "") if notice.wait else "", 0
        time.sleep(0.0 if etag else 1.0)
