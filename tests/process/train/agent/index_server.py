"""A package index, and a proxy, over HTTP on this computer."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit


class Server(http.server.ThreadingHTTPServer):
    """An HTTP server of this computer.

    Attributes:
        packages: Directory of the packages; None: it is a proxy.
        login: ``user:password`` that every request must have; empty: none.
        paths: Paths or URLs of the requests that were answered.
        refused: Number of requests without the login.
        on_request: Called with each path.
        digest: SHA-256 that the index names for every file; empty: the real one.
    """

    def __init__(self, packages: Path | None, login: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.packages = packages
        self.login = login
        self.paths: list[str] = []
        self.refused = 0
        self.digest = ""
        self.on_request: Callable[[str], None] = lambda _path: None

    @property
    def location(self) -> str:
        """Return address and port."""
        return f"127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        is_proxy = self.server.packages is None
        header = self.headers.get("Proxy-Authorization" if is_proxy else "Authorization", "")
        if self.server.login and header != f"Basic {base64.b64encode(self.server.login.encode()).decode()}":
            self.server.refused += 1
            self._answer(407 if is_proxy else 401, b"")
            return
        if self.command != "HEAD":
            self.server.paths.append(self.path)
        self.server.on_request(self.path)
        if is_proxy:
            self._answer(*self._forwarded())
        else:
            self._answer(200, self._content(urlsplit(self.path).path))

    do_HEAD = do_GET  # noqa: N815 - name of http.server

    def _forwarded(self) -> tuple[int, bytes]:
        authorization = self.headers.get("Authorization")
        headers = {"Authorization": authorization} if authorization else {}
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(urllib.request.Request(self.path, headers=headers)) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, b""

    def _content(self, path: str) -> bytes:
        assert self.server.packages is not None
        name = path.strip("/").rpartition("/")[2]
        file = self.server.packages / name
        if file.is_file():
            return file.read_bytes()
        files = sorted(item.name for item in self.server.packages.glob(f"{name.replace('-', '_')}-*"))
        digests = {item: hashlib.sha256((self.server.packages / item).read_bytes()).hexdigest() for item in files}
        return "".join(
            f'<a href="/files/{item}#sha256={self.server.digest or digests[item]}">{item}</a>' for item in files
        ).encode()

    def _answer(self, code: int, data: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(BrokenPipeError):
                self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


@contextlib.contextmanager
def serve(packages: Path | None, login: str = "") -> Iterator[Server]:
    """Run a package index for the files of a directory, or a proxy.

    Args:
        packages: The directory; None: a proxy.
        login: As in `Server`.
    """
    with Server(packages, login) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
