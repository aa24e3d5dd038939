"""Transfer snapshots between hosts; blocking, in threads of the replicator process.

    receiver → {"snapshot": {"attempt": …, "number": …, "digest": …}}
    sender   → {"size": …, "content": SHA-256}, and that many bytes, the manifest  |  {"gone": 1}
    receiver → {"file": index in the manifest}      repeated as needed
    sender   → {"size": …}, and that many bytes

Lines are sealed as between agents. Raw bytes are checked against the SHA-256 in a sealed line or in the manifest.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Callable, Dict, Iterator, List, Optional, Tuple

from train.agent.checkpoints.snapshot import PathItem, Snapshot, SnapshotManifest, decode_manifest
from train.agent.checkpoints.store import MANIFEST, ReplicaError, SnapshotStore, StoredSnapshot, need_space
from train.agent.files.disk import copy_file, finish_file, remove_tree, write_all
from train.agent.host.loop import Loop
from train.agent.host.streams import MessageStream, StreamListener
from train.agent.protocol.channel import LineBuffer, LineTooLongError
from train.agent.protocol.records import build, to_dict
from train.agent.protocol.session import (
    LONGEST_GREETING,
    LONGEST_LINE,
    Credentials,
    Greeting,
    LinkError,
    Message,
    Session,
    encode_message,
)

if TYPE_CHECKING:
    from typing import TypeAlias

SILENCE_S = 30.0  # without a byte
CONNECT_S = 5.0
GREETING_S = 5.0
LONGEST_MANIFEST = 64 << 20  # bytes
_EXPECTED = 256  # hosts that fetch at the same moment
_PIECE = 1 << 18
_BURST_S = 0.1
BROKEN = (OSError, LinkError, LineTooLongError)
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)

Source: TypeAlias = "Tuple[str, int]"  # address and port


class BandwidthLimit:
    """Limit the bandwidth that leaves this host, over all receivers together.

    Args:
        mib_s: MiB a second, more than 0.
    """

    def __init__(self, mib_s: float) -> None:
        self._rate = mib_s * (1 << 20)
        self._lock = threading.Lock()
        self._free_at = 0.0
        self.piece = max(1 << 12, min(_PIECE, int(self._rate * _BURST_S)))  # bytes to send at a time

    def remove_limit(self) -> None:
        """Remove the limit."""
        with self._lock:
            self._rate = float("inf")
            self._free_at = 0.0

    def wait(self, count: int) -> None:
        """Wait until `count` bytes may be sent."""
        now = time.monotonic()
        with self._lock:
            self._free_at = max(self._free_at, now - _BURST_S) + count / self._rate
            ahead = self._free_at - now
        if ahead > 0:
            time.sleep(ahead)


class Wire:
    """A blocking connection of lines and raw bytes.

    Args:
        connection: The connection.
        session: Of the connection, if it has been authenticated.
        buffer: What has been received on it.
    """

    def __init__(self, connection: socket.socket, session: Optional[Session], buffer: LineBuffer) -> None:
        self._connection = connection
        self._session = session
        self._buffer = buffer
        connection.settimeout(SILENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._connection.sendall(data)

    def authenticate(self, greeting: Greeting) -> None:
        """Authenticate both ends.

        Raises:
            LinkError: the other end is not one of the job, or too slow.
        """
        until = time.monotonic() + GREETING_S
        self.send(greeting.first())
        while self._session is None:
            line = self._buffer.line()
            if line is not None:
                answer, self._session = greeting.take(line)
                self.send(answer)
                continue
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise LinkError("no greeting")
            self._connection.settimeout(max(0.01, left_s))
            self._fill()
        self._buffer.limit = LONGEST_LINE
        self._connection.settimeout(SILENCE_S)

    def send_message(self, message: Message) -> None:
        """Send a sealed message."""
        if self._session is not None:
            self.send(self._session.seal(encode_message(message)))

    def receive_message(self) -> Message:
        """Return the next message."""
        while True:
            line = self._buffer.line()
            if line is not None and self._session is not None:
                return self._session.open(line)
            self._fill()

    def raw(self, size: int) -> Iterator[bytes]:
        """Yield the next `size` bytes as they were sent."""
        while size:
            piece = self._buffer.take(min(size, _PIECE)) or self._receive(min(size, _PIECE))
            size -= len(piece)
            yield piece

    def _fill(self) -> None:
        self._buffer.feed(self._receive(_PIECE))

    def _receive(self, most: int) -> bytes:
        data = self._connection.recv(most)
        if not data:
            raise ConnectionError("the connection ended")
        return data


# --- sender --------------------------------------------------------------------------------------------------


class SnapshotServer:
    """Send the newest snapshot to hosts that know the job's secret.

    Args:
        store: What is held.
        listener: Where they connect.
        credentials: What they have in common with us.
        bucket: What may leave this host.
    """

    def __init__(
        self, store: SnapshotStore, listener: socket.socket, credentials: Credentials, bucket: BandwidthLimit
    ) -> None:
        self._store = store
        self._bucket = bucket
        self._loop = Loop()
        listener.setblocking(False)
        self._listener = StreamListener(
            self._loop, listener, credentials.chief_greeting, _EXPECTED, self._start, deadline_s=GREETING_S
        )

    def run(self) -> None:
        """Serve connections forever, each in a thread once it is authenticated."""
        while True:
            self._loop.turn()

    def _start(self, stream: MessageStream) -> None:
        self._listener.release(stream)
        threading.Thread(target=self._serve, args=stream.detach(), daemon=True).start()

    def _serve(self, connection: socket.socket, session: Optional[Session], buffer: LineBuffer) -> None:
        with connection, contextlib.suppress(Exception):  # nothing that a host sends may end more than this
            self._send_snapshot(Wire(connection, session, buffer))

    def _send_snapshot(self, wire: Wire) -> None:
        with self._store.reading(build(Snapshot, wire.receive_message()["snapshot"])) as kept:
            if kept is None:
                wire.send_message({"gone": 1})
                return
            with open(os.path.join(kept.directory, MANIFEST), "rb") as file:
                data = file.read()
            wire.send_message({"size": len(data), "content": hashlib.sha256(data).hexdigest()})
            wire.send(data)
            while True:  # until the receiver hangs up, or a further snapshot has replaced this one
                self._send_file(wire, kept, int(wire.receive_message()["file"]))

    def _send_file(self, wire: Wire, kept: StoredSnapshot, number: int) -> None:
        size = kept.manifest.items[number].size
        with open(kept.path(number), "rb", buffering=0) as file:
            wire.send_message({"size": size})
            while size:
                piece = file.read(min(size, self._bucket.piece))
                if not piece or not os.path.isdir(kept.directory):  # its space is needed for newer ones
                    raise ConnectionError("the snapshot is gone")
                self._bucket.wait(len(piece))
                wire.send(piece)
                size -= len(piece)


# --- receiver ------------------------------------------------------------------------------------------------


class CancelledFetchError(Exception):
    """The fetch was cancelled."""


class Fetch:
    """Fetch one snapshot from any source that has it.

    Args:
        store: Where to keep the snapshot.
        credentials: What the sources have in common with us.
        snapshot: Which one.
        is_shared: Returns True if a manifest was taken from the local checkpoint directory.
    """

    def __init__(
        self,
        store: SnapshotStore,
        credentials: Credentials,
        snapshot: Snapshot,
        is_shared: Callable[[SnapshotManifest], bool],
    ) -> None:
        self._store = store
        self._credentials = credentials
        self.snapshot = snapshot
        self._is_shared = is_shared
        self._connection: Optional[socket.socket] = None
        self._cancelled = False

    def cancel(self) -> None:
        """Let `run` raise CancelledFetchError soon; may be called from another thread."""
        self._cancelled = True
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def run(self, sources: List[Source]) -> bool:
        """Fetch the snapshot; return False if the directory is shared and needs no copy.

        Raises:
            ReplicaError: no source has it, or the disk is full; the reason names each.
            CancelledFetchError: `cancel` was called.
        """
        target_directory = self._store.make()
        reasons = []
        broken: Optional[Exception] = None
        try:
            for address, port in sources:
                try:
                    return self._fetch_from(address, port, target_directory)
                except ReplicaError:
                    raise
                except BROKEN as error:
                    if getattr(error, "errno", None) in _DISK_ERRORS:
                        raise ReplicaError(f"a copy of the checkpoint cannot be written: {_reason(error)}") from error
                    broken = error
                    reasons.append(f"{address} port {port}: {_reason(error)}")
                except ValueError as error:
                    reasons.append(f"{address} port {port}: {error}")
                if self._cancelled:
                    raise CancelledFetchError
        finally:
            remove_tree(target_directory)
        name = f"snapshot {self.snapshot.number} of attempt {self.snapshot.attempt}"
        raise ReplicaError(
            f"no host gave {name} of the checkpoint: {'; '.join(reasons) or 'none has it'}"
        ) from broken

    def _fetch_from(self, address: str, port: int, target_directory: str) -> bool:
        with socket.create_connection((address, port), CONNECT_S) as connection:
            self._connection = connection
            if self._cancelled:
                raise CancelledFetchError
            try:
                wire = Wire(connection, None, LineBuffer(LONGEST_GREETING))
                wire.authenticate(self._credentials.peer_greeting())
                return self._receive_snapshot(wire, target_directory)
            finally:
                self._connection = None

    def _receive_snapshot(self, wire: Wire, target_directory: str) -> bool:
        manifest = self._manifest(wire)
        if self._is_shared(manifest):
            return False
        before = self._store.newest
        files = before.manifest.files if before is not None and before.is_intact() else []
        available = {item.content: (before.path(at), item) for at, item in files} if before is not None else {}
        missing = sum(item.size for _, item in manifest.files if item.content not in available)
        need_space(target_directory, missing, f"a copy of {manifest.slot}'s checkpoint on {self._credentials.slot}")
        for number, item in manifest.files:
            if self._cancelled:
                raise CancelledFetchError
            target = os.path.join(target_directory, str(number))
            if not self._is_available(item, target, available):
                self._receive(wire, number, item, target)
        self._store.keep(target_directory, manifest)
        return True

    def _manifest(self, wire: Wire) -> SnapshotManifest:
        wire.send_message({"snapshot": to_dict(self.snapshot)})
        answer = wire.receive_message()
        if "gone" in answer:
            raise LinkError("it does not hold it")
        size = answer.get("size")
        if not isinstance(size, int) or not 0 <= size <= LONGEST_MANIFEST:
            raise LinkError("a manifest of an impossible size")
        data = b"".join(wire.raw(size))
        if hashlib.sha256(data).hexdigest() != answer.get("content"):
            raise LinkError("the manifest was damaged on its way")
        manifest = decode_manifest(data)
        if manifest.snapshot != self.snapshot:
            raise LinkError("the manifest of another snapshot")
        return manifest

    def _is_available(self, item: PathItem, target: str, available: "Dict[str, Tuple[str, PathItem]]") -> bool:
        """Return True if `target` exists, from an earlier source or from a held snapshot."""
        if os.path.exists(target):
            return True
        if item.content not in available:
            return False
        path, held = available[item.content]
        if (held.mode, held.mtime_ns) == (item.mode, item.mtime_ns):
            os.link(path, target)
        else:
            copy_file(path, target, item.mode, item.mtime_ns)
        return True

    def _receive(self, wire: Wire, number: int, item: PathItem, target: str) -> None:
        wire.send_message({"file": number})
        if wire.receive_message().get("size") != item.size:
            raise LinkError("a file of another size than in its manifest")
        digest = hashlib.sha256()
        partial = f"{target}.part"
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            for piece in wire.raw(item.size):
                digest.update(piece)
                write_all(fd, piece)
            if digest.hexdigest() != item.content:
                raise LinkError(f"{item.path} was damaged on its way")
            finish_file(fd, item.mode, item.mtime_ns)
            os.rename(partial, target)
        finally:
            os.close(fd)


def _reason(error: Exception) -> str:
    if isinstance(error, socket.timeout):
        return f"it was silent for {SILENCE_S:.0f} s"
    return getattr(error, "strerror", None) or str(error)
