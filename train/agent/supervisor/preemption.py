"""Detect a preemption notice of Compute Engine, 30 seconds before the host is taken.

The value ``instance/preempted`` of the metadata server changes from FALSE to TRUE. A request with
``wait_for_change`` is answered when it does.
Sources: https://cloud.google.com/compute/docs/instances/create-use-spot (detecting preemption),
https://cloud.google.com/compute/docs/metadata/querying-metadata (wait_for_change, last_etag, timeout_sec, 503).
"""

import socket
from typing import Callable, Dict, Mapping, NamedTuple, Optional, Tuple

from train.agent.files.disk import read_text
from train.agent.host.loop import READ, WRITE, Loop

# The address of metadata.google.internal on every host of Compute Engine; no name has to be looked up.
METADATA_ADDRESS = "169.254.169.254"
PATH = "/computeMetadata/v1/instance/preempted"
_PRODUCT = "/sys/class/dmi/id/product_name"
_COMPUTE_ENGINE = "Google Compute Engine"
_FLAVOR = "metadata-flavor"
_POLL_S = 300  # after which the server answers although nothing has changed
_ANSWER_S = 10.0  # beyond that
_RETRY_S = (0.5, 60.0)
_TRIES = 6  # before any answer; then there is no such server
_LONGEST_ANSWER = 1 << 16  # bytes
_OK = 200
_PORT = 80
_TIMER = "preemption"


def metadata_server(environment: Mapping[str, str], product: str = _PRODUCT) -> str:
    """Return the address of Compute Engine's metadata server, or an empty string on any other host.

    Args:
        environment: Of the session; Google's own libraries take GCE_METADATA_HOST for the server.
        product: File with the product name of the host.
    """
    named = environment.get("GCE_METADATA_HOST", "").strip()
    return named or (METADATA_ADDRESS if read_text(product).strip() == _COMPUTE_ENGINE else "")


class Answer(NamedTuple):
    """An HTTP response."""

    status: int
    headers: Dict[str, str]  # by names in lower case
    body: str


def request(place: str, etag: str) -> bytes:
    """Return the request for the value; with `etag` the server answers when the value has changed."""
    wait = f"?wait_for_change=true&last_etag={etag}&timeout_sec={_POLL_S}" if etag else ""
    lines = (f"GET {PATH}{wait} HTTP/1.1", f"Host: {place}", "Metadata-Flavor: Google", "Connection: close", "", "")
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


def _place(text: str) -> Tuple[str, int]:
    name, colon, port = text.rpartition(":")
    return (name, int(port)) if colon and port.isdigit() else (text, _PORT)


class PreemptionWatch:
    """Poll the metadata server until it reports that the host is about to be taken.

    A server that has never answered as Compute Engine's does is given up without a word; one that has is asked for
    ever.

    Args:
        loop: Event loop that serves it.
        place: The server: name or address, with or without a port.
        on_preempted: Called once.

    Attributes:
        preempted: Whether it was.
    """

    def __init__(self, loop: Loop, place: str, on_preempted: Callable[[], None]) -> None:
        self._loop = loop
        self._host = place
        self._place = _place(place)
        self._on_preempted = on_preempted
        self._socket: Optional[socket.socket] = None
        self._data = bytearray()
        self._etag = ""
        self._known = False
        self._failures = 0
        self.preempted = False
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
        self._loop.after(_TIMER, _ANSWER_S, self._failed)
        try:
            address_info = socket.getaddrinfo(*self._place, type=socket.SOCK_STREAM)[0]
            self._socket = socket.socket(address_info[0], socket.SOCK_STREAM)
            self._socket.setblocking(False)
            self._socket.connect(address_info[4])
        except BlockingIOError:
            pass
        except OSError:
            self._failed()
            return
        if self._socket is not None:
            self._loop.watch(self._socket.fileno(), WRITE, lambda _: self._ask())

    def _ask(self) -> None:
        connection = self._socket
        if connection is None:
            return
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._failed()
            return
        try:
            connection.sendall(request(self._host, self._etag))  # less than any socket takes at once
        except OSError:
            self._failed()
            return
        self._loop.after(_TIMER, _ANSWER_S + (_POLL_S if self._etag else 0.0), self._failed)
        self._loop.watch(connection.fileno(), READ, lambda _: self._hear())

    def _hear(self) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(1 << 12)
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
        if answer.status != _OK or answer.headers.get(_FLAVOR) != "Google":
            self._failed()
            return
        self.close()
        self._known = True
        self._failures = 0
        if answer.body.upper() == "TRUE":
            self.preempted = True
            self._on_preempted()
            return
        # Without an ETag the server cannot wait for a change; poll again after a pause.
        self._etag = answer.headers.get("etag", "")
        self._loop.after(_TIMER, 0.0 if self._etag else 1.0, self._connect)

    def _failed(self) -> None:
        self.close()
        self._failures += 1
        self._etag = ""
        if self._known or self._failures < _TRIES:
            shortest_s, longest_s = _RETRY_S
            pause_s = min(longest_s, shortest_s * 2.0 ** min(self._failures - 1, 20))
            self._loop.after(_TIMER, pause_s, self._connect)
