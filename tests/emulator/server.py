"""The emulator: an HTTP server on the loopback interface that is Compute Engine to its clients."""

from __future__ import annotations

import datetime
import json
import re
import shutil
import socket
import ssl
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.emulator import lifecycle
from tests.emulator.api import Api
from tests.emulator.catalog import QUOTAS, REGIONS, ZONES, entry
from tests.emulator.clock import Clock
from tests.emulator.cloud import Cloud
from tests.emulator.faults import Faults
from tests.emulator.governance import ANONYMOUS
from tests.emulator.guests import Guests, NoGuest
from tests.emulator.messages import Answer, Broken, Request, encode
from tests.emulator.storage import XML

Json = dict[str, Any]
HOSTS = ("www.googleapis.com", "storage.googleapis.com")
"""Hosts that TensorFlow and Google's libraries use; TensorFlow cannot use others."""
_STOP_S = 30.0
_HTTPS = 443
_JSON_API = re.compile(r"/(?:storage|upload|download|resumable|batch)/")


class Emulator:
    """Compute Engine on this computer, for one project.

    Use it as a context manager, or call `close`. Its methods may be called from any thread.

    Args:
        port: TCP port; 0: any free one.
        project: Id of the project there is.
        operation_s: How long an operation takes; 0: as good as no time.
        guests: Makes what runs on the instances; None: nothing does, and host keys appear by themselves.
        directory: Of the guests' files; None: a temporary one.
        grace_s: Between the warning of a preempted instance and its end.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        project: str = "proj-1",
        operation_s: float = 0.01,
        guests: Guests | None = None,
        directory: Path | None = None,
        grace_s: float = 30.0,
    ) -> None:
        self._own_directory = None if directory else tempfile.mkdtemp(prefix="fleet-emulator-")
        self.clock = Clock()
        self.faults = Faults()
        self.cloud = Cloud(
            project,
            self.clock,
            operation_s,
            guests or NoGuest,
            threaded=guests is not None,
            directory=directory or Path(self._own_directory or ""),
        )
        self.cloud.grace_s = grace_s
        self.api = Api(self.cloud, self.faults)
        self._server = _Server(self, ("127.0.0.1", port))
        self.port = int(self._server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.cloud.settle_at(self.url, self.port)
        self._servers = [self._server, *(self._google() if guests else [])]
        self._threads = [
            threading.Thread(target=server.serve_forever, args=(0.05,), name="emulator", daemon=True)
            for server in self._servers
        ]

    def _google(self) -> Iterator[_Server]:
        """Yield the server that guests reach at the names of Google's hosts, if this user can listen there."""
        with tempfile.TemporaryDirectory() as directory:
            context, certificate = google_context(Path(directory) / "googleapis.pem")
        address = self.cloud.serve_google(HOSTS, certificate)
        try:
            server = _Server(self, (address, _HTTPS), is_google=True)
        except PermissionError:
            return
        # The handshake is that of the first read, in the thread of its connection.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        yield server

    def __enter__(self) -> Emulator:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Answer from now on."""
        self.clock.start()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop; no process and file of any guest is left when this returns."""
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
        self.clock.close()
        self.reset()
        if self._own_directory:
            shutil.rmtree(self._own_directory, ignore_errors=True)

    def reset(self) -> None:
        """Hold nothing, count nothing, know no fault, as at the start; guests are gone when this returns."""
        self.faults.clear()
        with self.clock.changed:
            self.clock.forget()
            guests = [instance.guest for instance in self.cloud.instances.values() if instance.guest]
            self.cloud.empty()
            self.api.calls.clear()
            self.api.violations.clear()
            self.api.needed.clear()
            for guest in guests:
                self.cloud.aside(guest.remove)
            self.clock.changed.notify_all()
        self.cloud.join(_STOP_S)

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request.

        Raises:
            Broken: the connection must end without an answer.
        """
        if request.path.startswith("/emulator/") and request.path != "/emulator/tunnel":
            return self._administer(request)
        return self.api.answer(request)

    def _administer(self, request: Request) -> Answer:
        """Answer a request of the emulator's own API, under ``/emulator/``."""
        name = request.path.removeprefix("/emulator/")
        if request.verb == "GET" and name == "state":
            return encode(200, self.state())
        if request.verb == "GET" and name == "address":
            return Answer(200, f"{self.cloud.caller}\n".encode(), {"Content-Type": "text/plain"})
        if request.verb != "POST" or name not in _ACTIONS:
            return encode(404, {"error": f"nothing is at {request.verb} {request.path}"})
        try:
            given = json.loads(request.body or b"{}")
            _ACTIONS[name](self, *given.pop("zones", ()), **given)
        except (LookupError, TypeError, ValueError) as error:
            return encode(400, {"error": str(error)})
        return encode(200, {})

    def state(self) -> Json:
        """Return the resources, the number of calls, and the violations of the discovery document."""
        with self.clock.changed:
            self.clock.run_due()
            return {
                "instances": sorted(name for _, name in self.cloud.instances),
                "disks": sorted(name for _, name in self.cloud.disks),
                "firewalls": sorted(self.cloud.firewalls),
                "addresses": sorted(name for _, name in self.cloud.addresses),
                "policies": sorted(name for _, name in self.cloud.policies),
                "images": sorted(self.cloud.images),
                "operations": self.cloud.operations.pending(),
                "violations": list(self.api.violations),
                "calls": dict(self.api.calls),
            }

    def settle(self, timeout_s: float = 90.0) -> None:
        """Let all operations come to their end, putting the clock forward instead of waiting.

        Raises:
            TimeoutError: a guest takes longer than `timeout_s`.
        """
        deadline, pending = time.monotonic() + timeout_s, self.cloud.operations.pending

        def is_moving() -> bool:
            return not pending() or self.clock.has_due

        while pending():
            # Without the lock, the operations could end meanwhile, and the clock skips to the end of an instance.
            with self.clock.lock:
                if not pending() or self.clock.skip():
                    continue
            if not self.clock.wait_for(is_moving, deadline - time.monotonic()):
                raise TimeoutError(f"operations still run after {timeout_s:g} s: {pending()}")

    def fail_host(self, name: str) -> None:
        """Let the machine of an instance fail: it stops without a warning, and restarts if its scheduling says so.

        Raises:
            LookupError: no instance of that name runs.
        """
        self._act(name, lifecycle.fail_host)

    def plan_maintenance(self, name: str, in_s: float, window_s: float = 0.0) -> None:
        """Plan maintenance that stops an instance: it begins in `in_s` or later, and lasts up to `window_s`.

        Raises:
            LookupError: no instance of that name runs.
        """
        start = self.clock.now() + in_s
        self._act(name, lifecycle.plan_maintenance, start, start + window_s)

    def preempt(self, name: str, grace_s: float | None = None) -> None:
        """Take a spot instance back: it is warned, and ends after `grace_s`.

        Raises:
            LookupError: no instance of that name runs.
            ValueError: it is not a spot instance.
        """
        self._act(name, lifecycle.preempt, self.cloud.grace_s if grace_s is None else grace_s)

    def _act(self, name: str, act: Callable[..., None], *values: float) -> None:
        with self.clock.changed:
            self.clock.run_due()
            for instance in self.cloud.instances.values():
                if instance.blueprint.name == name and instance.status == "RUNNING":
                    act(self.cloud, instance, *values)
                    return
        raise LookupError(f"no instance {name} runs")

    def advance(self, seconds: float) -> None:
        """Advance the clock of the cloud and of its guests."""
        self.clock.advance(seconds)
        with self.clock.lock:
            guests = [instance.guest for instance in self.cloud.instances.values() if instance.guest]
        for guest in guests:
            guest.follow_clock()

    def set_quota(self, metric: str, limit: float, region: str = "") -> None:
        """Set a quota; of every region that has it, where none is given.

        Raises:
            ValueError: the quota is unknown.
        """
        with self.clock.lock:
            self.cloud.limits.set_quota(metric, limit, region)
            self.cloud.recheck_queue()

    def start_project(self, quotas: str = "new_project") -> None:
        """Let the project be new: with small quotas, without GPUs, and with a network in custom mode only."""
        with self.clock.lock:
            for metric, limit in QUOTAS[quotas].items():
                self.cloud.limits.set_quota(metric, limit)
            self.cloud.networks[:] = ["main"]

    def start_trial(self) -> None:
        """Let the billing account be in its free trial, with its quotas and without GPUs."""
        self.start_project("trial")
        self.cloud.networks[:] = ["default"]
        self.cloud.governance.is_trial = True

    def set_capacity(self, zone: str, limit: float, resource: str = "instances") -> None:
        """Set the capacity of a zone for ``instances``, ``spot`` instances, or GPUs of a type.

        Raises:
            ValueError: the zone or the resource is unknown.
        """
        with self.clock.lock:
            self.cloud.limits.set_capacity(zone, resource, limit)
            self.cloud.recheck_queue()

    def set_outage(self, *zones: str) -> None:
        """Let these zones and regions not answer from now on, and no others.

        Raises:
            ValueError: the zone does not exist.
        """
        with self.clock.lock:
            if unknown := set(zones) - ZONES.keys() - REGIONS.keys():
                raise ValueError(f"these zones do not exist: {', '.join(sorted(unknown))}")
            self.cloud.silent = set(zones)

    def set_networks(self, *names: str) -> None:
        """Let the project have these VPC networks, in place of ``default``."""
        with self.clock.lock:
            self.cloud.networks[:] = names

    def share_networks(self, project: str, *names: str) -> None:
        """Let `project` be the host project of a Shared VPC with these networks; each has a subnetwork everywhere."""
        with self.clock.lock:
            self.cloud.shared[project] = list(names)

    def translate_addresses(self, *regions: str, network: str = "default", project: str = "") -> None:
        """Let Cloud NAT serve all subnetworks of a network in these regions."""
        base = self.cloud.url_of(project or self.cloud.project)
        nats = [{"name": "nat", "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES"}]
        with self.clock.lock:
            for region in regions:
                place = {"region": f"{base}/regions/{region}", "selfLink": f"{base}/regions/{region}/routers/nat"}
                router = entry("router", "nat", network=f"{base}/global/networks/{network}", nats=nats, **place)
                self.cloud.routers[region, "nat"] = router

    def set_caller(self, address: str) -> None:
        """Let the client call from this address from now on, as firewall rules see it."""
        with self.clock.lock:
            self.cloud.caller = address
            self.cloud.apply_firewall()
        self.cloud.join(_STOP_S)

    def deny(self, *permissions: str) -> None:
        """Let the caller lack permissions, ``compute.instances.create``."""
        with self.clock.lock:
            self.cloud.denied.update(permissions)


_ACTIONS: dict[str, Callable[..., object]] = {
    "advance": Emulator.advance,
    "capacity": Emulator.set_capacity,
    "clear": Emulator.reset,
    "faults": lambda emulator, **given: emulator.faults.add(**given),
    "faults/clear": lambda emulator: emulator.faults.clear(),
    "host-error": Emulator.fail_host,
    "maintenance": Emulator.plan_maintenance,
    "outage": Emulator.set_outage,
    "preempt": Emulator.preempt,
    "quota": Emulator.set_quota,
}
"""Functions of ``POST /emulator/NAME``, with the fields of the JSON of the body as arguments."""


class _Server(ThreadingHTTPServer):
    """A server of the emulator.

    Attributes:
        is_google: Whether it is Google's hosts as guests see them: a call without a token is anonymous.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, emulator: Emulator, address: tuple[str, int], *, is_google: bool = False) -> None:
        super().__init__(address, _Connection)
        self.emulator, self.is_google = emulator, is_google

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that closed the connection early."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _Server

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Return the time of the cloud for the header ``Date``."""
        return super().date_time_string(self.server.emulator.clock.now() if timestamp is None else timestamp)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        """Nothing is logged; calls are counted."""

    def do_GET(self) -> None:
        body = self._body()
        if body is None:  # the client was killed in the middle of its request
            self.close_connection = True
            return
        try:
            target, headers = self.path, {name.lower(): value for name, value in self.headers.items()}
            token = headers.get("authorization", "").removeprefix("Bearer ")
            if self.server.is_google:
                is_xml = headers.get("host") == "storage.googleapis.com" and not _JSON_API.match(target)
                target, token = XML.rstrip("/") + target if is_xml else target, token or ANONYMOUS
            request = Request(self.command, target, body, token, headers)
            answer = self.server.emulator.answer(request)
        except Broken as broken:
            self._break(broken)
            return
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in {"Content-Type": "application/json; charset=UTF-8", **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    def __getattr__(self, name: str) -> Any:
        """Answer requests with other methods like those with GET."""
        if name in ("do_DELETE", "do_PATCH", "do_POST", "do_PUT"):
            return self.do_GET
        raise AttributeError(name)

    def _body(self) -> bytes | None:
        """Return the body of the request; None: it is not complete."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            return body if len(body) == length else None
        body = b""
        while size := int(self.rfile.readline().partition(b";")[0] or b"0", 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def _break(self, broken: Broken) -> None:
        self.close_connection = True
        if broken.reset:
            # With no time to linger, closing sends a reset; it happens once the files on the socket are closed too.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        else:
            self.connection.shutdown(socket.SHUT_RDWR)


def google_context(path: Path) -> tuple[ssl.SSLContext, str]:
    """Return the settings of a server with the names of `HOSTS`, and its certificate, PEM.

    Args:
        path: File that has the key only for a moment.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOSTS[0])])
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder(
        issuer_name=name,
        subject_name=name,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - datetime.timedelta(days=1),
        not_valid_after=now + datetime.timedelta(days=30),
    )
    names = x509.SubjectAlternativeName([x509.DNSName(host) for host in HOSTS])
    authority = x509.BasicConstraints(ca=True, path_length=None)
    signed = builder.add_extension(names, critical=False).add_extension(authority, critical=True)
    certificate = signed.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    path.touch(0o600)
    path.write_bytes(certificate + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context, certificate.decode()
