"""The metadata server of a guest, as the instance itself sees it.

Source: https://cloud.google.com/compute/docs/metadata/querying-metadata
"""

from __future__ import annotations

import hashlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

ROOT = "/computeMetadata/v1"
_FLAVOR = "Metadata-Flavor"
_WAIT_S = 3600.0

Tree = dict[str, Any]

POWER_OFF = ("", "power", "off")
RESTART = ("", "power", "restart")
"""Value that a guest publishes instead of an attribute when it powers itself off or restarts."""


class Metadata:
    """The content of the server: a tree that changes, with requests that wait for changes.

    Args:
        instance: Below ``instance/``: text, or a tree of its own; the metadata items are its ``attributes``.
        project: Name of the project.
        publish: Called with namespace, key and value of each guest attribute that the guest sets.
        now: Returns the time of the server, in seconds since the epoch.
    """

    def __init__(
        self,
        instance: Tree,
        project: str,
        publish: Callable[[str, str, str], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self.now = now
        self._changed = threading.Condition()
        self._boots = 0
        self._publish = publish
        self._tree: Tree = {"instance": {**instance, "guest-attributes": {}}, "project": {"project-id": project}}

    def set(self, key: str, value: str | Mapping[str, str]) -> None:
        """Change a value of the instance."""
        with self._changed:
            self._tree["instance"][key] = value if isinstance(value, str) else dict(value)
            self._changed.notify_all()

    def set_guest_attribute(self, namespace: str, key: str, value: str) -> bool:
        """Publish a guest attribute; return False if the metadata does not allow it."""
        with self._changed:
            instance = self._tree["instance"]
            if not may_publish(instance["attributes"]):
                return False
            instance["guest-attributes"].setdefault(namespace, {})[key] = value
        self._publish(namespace, key, value)
        return True

    def pass_on(self, event: tuple[str, str, str]) -> None:
        """Report that the guest powers itself off or starts again: `POWER_OFF` or `RESTART`."""
        self._publish(*event)

    def end_waiting(self) -> None:
        """Answer all waiting requests."""
        with self._changed:
            self._boots += 1
            self._changed.notify_all()

    def read(self, path: str, query: Mapping[str, str]) -> tuple[str, str] | None:
        """Return text and content type at a path below `ROOT`; None if the path does not exist.

        With ``wait_for_change=true`` it waits until the value is another one than that of ``last_etag`` (than now,
        where there is none), for ``timeout_sec`` seconds at most.
        """
        wait_s = float(query.get("timeout_sec", "") or _WAIT_S)
        with self._changed:
            rendered = self._render(path, query)
            if query.get("wait_for_change", "").lower() != "true" or rendered is None:
                return rendered
            seen_etag, boots = query.get("last_etag") or etag(rendered[0]), self._boots
            deadline = time.monotonic() + wait_s
            while rendered is not None and etag(rendered[0]) == seen_etag and self._boots == boots:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    break
                rendered = self._render(path, query)
            return rendered

    def _render(self, path: str, query: Mapping[str, str]) -> tuple[str, str] | None:
        value: Any = self._tree
        for word in [word for word in path.split("/") if word]:
            if not isinstance(value, dict) or word not in value:
                return None
            value = value[word]
        if isinstance(value, str):
            if path.endswith("/token"):
                return value, "application/json"
            return (
                (json.dumps(value), "application/json") if query.get("alt") == "json" else (value, "application/text")
            )
        if query.get("recursive", "").lower() == "true":
            return json.dumps(_camel(value)), "application/json"
        return "".join(
            f"{key}/\n" if isinstance(value[key], dict) else f"{key}\n" for key in value
        ), "application/text"


def may_publish(items: Mapping[str, str]) -> bool:
    """Return whether an instance with these metadata items can set guest attributes."""
    return items.get("enable-guest-attributes", "").lower() == "true"


def etag(text: str) -> str:
    """Return the ETag of a value: 16 hexadecimal digits, the same for the same value."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _camel(tree: Tree) -> Tree:
    """The tree with keys as JSON has them, without tokens; keys of attributes stay as they are."""
    shown: Tree = {}
    for key, value in tree.items():
        if key == "token":
            continue
        first, *rest = key.split("-")
        name = first + "".join(word.capitalize() for word in rest)
        if isinstance(value, dict):
            shown[name] = dict(value) if key in ("attributes", "guest-attributes") else _camel(value)
        else:
            shown[name] = int(value) if key == "id" else value
    return shown


class MetadataServer:
    """An HTTP server for the metadata of one guest, on a free port of its address.

    Args:
        metadata: Its content.
        address: Of the guest.

    Attributes:
        place: Its address and port, as GCE_METADATA_HOST has them.
    """

    def __init__(self, metadata: Metadata, address: str) -> None:
        self._metadata = metadata
        self._server = _Server((address, 0), _Requests)
        self._server.metadata = metadata
        self.place = f"{address}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._serve, name=f"metadata {address}", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        # Not serve_forever(), which wakes up many times a second to see whether it should end.
        while True:
            try:
                self._server.process_request(*self._server.get_request())
            except OSError:
                return

    def close(self) -> None:
        """Stop answering; waiting requests are answered first."""
        self._metadata.end_waiting()
        self._server.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    metadata: Metadata

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep to the standard library's report, but for clients that went away while they waited."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "Metadata Server for VM"
    sys_version = ""
    server: _Server

    def do_GET(self) -> None:
        path = self._allowed_path()
        if path is None:
            return
        query = {key: values[-1] for key, values in parse_qs(urlsplit(self.path).query).items()}
        try:
            answer = self.server.metadata.read(path, query)
        except ValueError:
            self._answer(HTTPStatus.BAD_REQUEST, "Invalid timeout_sec")
            return
        if answer is None:
            self._answer(HTTPStatus.NOT_FOUND, "The requested URL was not found on this server.")
        else:
            self._answer(HTTPStatus.OK, *answer)

    def do_PUT(self) -> None:
        value = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode("utf-8", "replace")
        path = self._allowed_path()
        if path is None:
            return
        words = path.strip("/").split("/")
        event = {"emulator/power-off": POWER_OFF, "emulator/restart": RESTART}.get("/".join(words))
        if event is not None:
            self._answer(HTTPStatus.OK, "")
            self.server.metadata.pass_on(event)
        elif len(words) != 4 or words[:2] != ["instance", "guest-attributes"]:
            self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "Method not allowed")
        elif self.server.metadata.set_guest_attribute(words[2], words[3], value):
            self._answer(HTTPStatus.OK, "")
        else:
            self._answer(HTTPStatus.FORBIDDEN, "Guest attributes endpoint access is disabled.")

    def _allowed_path(self) -> str | None:
        path = unquote(urlsplit(self.path).path)
        if self.headers.get(_FLAVOR) != "Google" or self.headers.get("X-Forwarded-For"):
            self._answer(HTTPStatus.FORBIDDEN, f"Missing required header: {_FLAVOR}")
        elif path == "/":
            self._answer(HTTPStatus.OK, "computeMetadata/\n")
        elif not path.startswith(f"{ROOT}/"):
            self._answer(HTTPStatus.NOT_FOUND, "The requested URL was not found on this server.")
        else:
            return path[len(ROOT) :]
        return None

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/html") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header(_FLAVOR, "Google")
        self.send_header("Content-Type", kind)
        self.send_header("ETag", etag(text))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Return the time of the server for the header ``Date``."""
        return super().date_time_string(self.server.metadata.now() if timestamp is None else timestamp)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the standard library
        """Say nothing."""
