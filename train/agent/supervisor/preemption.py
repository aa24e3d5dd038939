"""Read the notices of a cloud from its HTTP server: the host is about to be taken, or its jobs must end at a time.

The providers declare the servers; a host polls the one that its cloud has.
"""

from __future__ import annotations

import socket
import time
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from train.agent.files.disk import read_text
from train.agent.host.loop import READ, WRITE, Loop
from train.agent.protocol.records import PreemptionNotice
from train.agent.protocol.strict_json import JsonError, parse_json

_PRODUCT = "/sys/class/dmi/id/product_name"
_SCHEME = "http://"
# The metadata of an instance on Compute Engine has up to 512 KiB; in JSON, each byte takes up to 6.
# Source: https://cloud.google.com/compute/docs/metadata/setting-custom-metadata (limitations)
_LONGEST_ANSWER = 1 << 22  # bytes
_READ = 1 << 16  # bytes at once
_DATE = "%a, %d %b %Y %H:%M:%S GMT"
_LONGEST_TIME = 12  # digits of seconds since the epoch
_OK = 200
_PORT = 80
_TIMER = "notices"
_SOON_S = 3600.0  # before planned maintenance: as long as the notice of Compute Engine for hosts with GPUs


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
            return notice._replace(url=f"{_SCHEME}{server}/{_split(notice.url)[1]}")
        if notice.product == name:
            return notice
    return None


def _split(url: str) -> Tuple[str, str]:
    """Return the server and the path of a URL, without the slash between them."""
    server, _, path = url[len(_SCHEME) :].partition("/")
    return server, path


class Timing(NamedTuple):
    """Times of the requests, in seconds."""

    poll_s: int = 300  # the server responds after this time although the value has not changed
    answer_s: float = 10.0  # longest time until a response, in addition to poll_s
    retry_s: float = 0.5  # pause after the first failure; doubled after each further one
    longest_retry_s: float = 60.0


_TIMING = Timing()


class Answer(NamedTuple):
    """An HTTP response."""

    status: int
    headers: Dict[str, str]  # by names in lower case
    body: str


class Window(NamedTuple):
    """Time window of planned maintenance that stops the host, in seconds since the epoch; 0: none, or unknown."""

    start: float = 0.0
    end: float = 0.0


NO_WINDOW = Window()


class Notices(NamedTuple):
    """The notices in a response."""

    preempted: bool = False
    end_in_s: Optional[float] = None  # until all jobs must have ended, by the server's clock; None: never
    maintenance: bool = False  # the host is stopped for maintenance within an hour
    window: Window = NO_WINDOW


def read_notices(notice: PreemptionNotice, answer: Answer) -> Notices:
    """Return the notices in a response; values that are missing or invalid count as no notice."""
    if not notice.key:
        return Notices(answer.body.upper() == notice.value.upper())
    try:
        content = parse_json(answer.body)
    except JsonError:
        return Notices()
    now = _time_of(answer)
    preempted = _find(content, notice.key).upper() == notice.value.upper()
    maintenance = bool(notice.maintenance_key) and (
        _find(content, notice.maintenance_key).upper() == notice.maintenance_value.upper()
    )
    window = Window(*(_find_time(content, notice.window_key, edge) for edge in ("Start", "End")))
    is_soon = 0 < window.start <= now + _SOON_S and (window.end > now or not window.end)
    end_at = _find(content, notice.end_key)
    is_end = len(end_at) <= _LONGEST_TIME and end_at.isdecimal() and int(end_at) > 0
    return Notices(preempted, int(end_at) - now if is_end else None, maintenance or is_soon, window)


def _find(content: Any, key: str) -> str:
    """Return the text at a path in an object; empty if there is none."""
    for name in key.split("/"):
        content = content.get(name) if isinstance(content, dict) else None
    return content if isinstance(content, str) else ""


def _find_time(content: Any, key: str, edge: str) -> float:
    """Return the start or end of the time window at a path, in seconds since the epoch; 0 if there is none."""
    names = f"window{edge}Time", f"window_{edge.lower()}_time"
    text = next(filter(None, (_find(content, f"{key}/{name}") for name in names)), "")
    if not text:
        return 0.0
    from datetime import datetime

    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _time_of(answer: Answer) -> float:
    """Return the time of a response in seconds since the epoch: the clock of the host may be wrong."""
    import calendar

    try:
        return float(calendar.timegm(time.strptime(answer.headers.get("date", ""), _DATE)))
    except ValueError:
        return time.time()


def request(notice: PreemptionNotice, etag: str, poll_s: int) -> bytes:
    """Return the request for the value; with `etag` the server responds when the value has changed."""
    server, path = _split(notice.url)
    mark = "&" if "?" in path else "?"
    wait = f"{mark}{notice.wait.format(etag=etag, seconds=poll_s)}" if etag else ""
    headers = {"Host": server, **notice.headers, "Connection": "close"}
    lines = (f"GET /{path}{wait} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", "")
    return "\r\n".join(lines).encode("ascii", "replace")


def read_answer(data: bytes, *, ended: bool) -> Optional[Answer]:
    """Return the response that begins in `data`, or None if it is incomplete.

    Args:
        data: What came.
        ended: Nothing more will come.

    Raises:
        ValueError: the data is not an HTTP response.
    """
    head, separator, body = data.partition(b"\r\n\r\n")
    if not separator:
        if ended or len(data) > _LONGEST_ANSWER:
            raise ValueError("no answer of HTTP")
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdigit():
        raise ValueError("no answer of HTTP")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    size = headers.get("content-length", "")
    if not ended and (not size.isdigit() or len(body) < int(size)):
        if len(data) > _LONGEST_ANSWER:
            raise ValueError("an answer that is too long")
        return None
    return Answer(int(words[1]), headers, body.decode("latin-1").strip())


def _parse_address(text: str) -> Tuple[str, int]:
    name, colon, port = text.rpartition(":")
    return (name, int(port)) if colon and port.isdigit() else (text, _PORT)


class NoticeWatch:
    """Poll a server for the notices of a cloud.

    It is polled until the end of the job, also if it has not responded yet: it may be away for a while at the start.

    Args:
        loop: Event loop that serves it.
        notice: The server and its response.
        on_notices: Called with the notices of each response.
        timing: Times of the requests.
    """

    def __init__(
        self, loop: Loop, notice: PreemptionNotice, on_notices: Callable[[Notices], None], timing: Timing = _TIMING
    ) -> None:
        self._loop = loop
        self._notice = notice
        self._timing = timing
        self._address = _parse_address(_split(notice.url)[0])
        self._on_notices = on_notices
        self._socket: Optional[socket.socket] = None
        self._data = bytearray()
        self._etag = ""
        self._failures = 0
        self._connect()

    def close(self) -> None:
        """Stop polling."""
        self._loop.cancel(_TIMER)
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _connect(self) -> None:
        self._data.clear()
        self._loop.after(_TIMER, self._timing.answer_s, self._failed)
        try:
            address_info = socket.getaddrinfo(*self._address, type=socket.SOCK_STREAM)[0]
            self._socket = socket.socket(address_info[0], socket.SOCK_STREAM)
            self._socket.setblocking(False)
            self._socket.connect(address_info[4])
        except BlockingIOError:
            pass
        except OSError:
            self._failed()
            return
        if self._socket is not None:
            self._loop.watch(self._socket.fileno(), WRITE, lambda _: self._send_request())

    def _send_request(self) -> None:
        connection = self._socket
        if connection is None:
            return
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._failed()
            return
        try:
            connection.sendall(
                request(self._notice, self._etag, self._timing.poll_s)
            )  # less than any socket takes at once
        except OSError:
            self._failed()
            return
        self._loop.after(_TIMER, self._timing.answer_s + (self._timing.poll_s if self._etag else 0), self._failed)
        self._loop.watch(connection.fileno(), READ, lambda _: self._receive_answer())

    def _receive_answer(self) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(_READ)
            self._data += data
            answer = read_answer(bytes(self._data), ended=not data)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self._failed()
            return
        if answer is not None:
            self._take(answer)

    def _take(self, answer: Answer) -> None:
        expected = {(name.lower(), value) for name, value in self._notice.headers.items()}
        if answer.status != _OK or not expected <= set(answer.headers.items()):
            self._failed()
            return
        self.close()
        self._failures = 0
        # A server that cannot wait for a change is polled again after a pause.
        self._etag = answer.headers.get("etag", "") if self._notice.wait else ""
        self._loop.after(_TIMER, 0.0 if self._etag else 1.0, self._connect)
        self._on_notices(read_notices(self._notice, answer))

    def _failed(self) -> None:
        self.close()
        self._failures += 1
        self._etag = ""
        pause_s = min(self._timing.longest_retry_s, self._timing.retry_s * 2.0 ** min(self._failures - 1, 20))
        self._loop.after(_TIMER, pause_s, self._connect)
