"""The replicator: a child process of the supervisor that keeps the checkpoints of the job on every host.

It watches the checkpoint directory of the chief's task, keeps a copy of its newest complete state, sends that to the
replicators of the other hosts, and makes the checkpoint directory equal to a snapshot before an attempt starts. The
supervisor sends commands and receives news over a socket, in lines of JSON, and never waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from train.agent.checkpoints.formats import State, checkpoint_name, complete_state
from train.agent.checkpoints.snapshot import Snapshot, SnapshotManifest, newer, replicated_keys, replication_problem
from train.agent.checkpoints.store import (
    ChangedError,
    ReplicaError,
    SnapshotStore,
    directory_identity,
    list_directory,
    read_listing,
    refresh,
    restore,
    take_snapshot,
)
from train.agent.checkpoints.transfer import BandwidthLimit, CancelledFetchError, Fetch, SnapshotServer, Source
from train.agent.host.loop import Loop
from train.agent.host.ports import listen_for_links
from train.agent.host.processes import read_stat
from train.agent.host.spawn import fork_helper
from train.agent.host.streams import LineStream
from train.agent.protocol.errors import RefusedError, reason_kind
from train.agent.protocol.records import NO_REASON, Reason, build, to_dict
from train.agent.protocol.session import Credentials

if TYPE_CHECKING:
    from train.agent.checkpoints.snapshot import Keys

QUIET_S = 2.0  # a directory is at rest if it is unchanged for this time

_NICE = 10
_STACK = 512 << 10  # bytes, of a thread
_LOOK_S = 0.5  # between two listings of the directory …
_LOOK_COST = 50  # … but at least this many times the duration of one
_REST_S = 5.0  # … up to this time, which is also the pause after an error
_UNUSUAL_S = 120.0  # without a complete state
_LAST_TRIES = 3


class Restored(NamedTuple):
    """The answer to `Replicator.restore`."""

    snapshot: Optional[Snapshot]
    error: Reason = NO_REASON  # a sentence; empty: the checkpoint directory is equal to the snapshot


class News(NamedTuple):
    """News of the replicator: `held` and `port` are always valid, the other fields report what just happened."""

    held: Optional[Snapshot]  # what this host can give
    port: int  # where it gives it; 0: nowhere
    settled: Optional[int] = None  # the attempt whose last look is done
    fetched: Optional[Snapshot] = None  # wanted, and done; not `held` if the directory is shared, or that is newer
    restored: Optional[Restored] = None
    checkpoint: str = ""  # the name of the restored checkpoint, if its files are known here
    error: str = ""  # why a fetch failed, or that the replicator ended
    note: str = ""  # a sentence for the user
    ended: bool = False  # the process has ended; a new one continues from disk


class Setup(NamedTuple):
    """Configuration of a replicator."""

    job: str
    secret: bytes  # the job's
    slot: str
    address: str  # private address of this host
    live: str  # the checkpoint directory, absolute
    store: str  # where snapshots are kept, TASK/replica
    mib_s: float  # maximum number MiB a second leave this host; more than 0

    @property
    def credentials(self) -> Credentials:
        """Return what the hosts of the job share."""
        return Credentials(self.job, self.secret, self.slot)

    def check(self) -> None:
        """Check that the checkpoint directory may be changed.

        Raises:
            ReplicaError: it holds other things as well.
        """
        reason = replication_problem(self.live, self.store)
        if reason:
            raise ReplicaError(reason)

    def is_shared_with(self, manifest: SnapshotManifest) -> bool:
        """Return True if another host's task writes to the same checkpoint directory."""
        return manifest.slot != self.slot and manifest.origin == directory_identity(self.live)


class Replicator:
    """The supervisor's end: start the process, send commands, and receive news.

    Args:
        loop: Event loop that serves it.
        setup: What it works with.
        on_news: Called with each piece of news.

    Raises:
        OSError: no process can be made.
    """

    def __init__(self, loop: Loop, setup: Setup, *, on_news: Callable[[News], None]) -> None:
        self._on_news = on_news
        self._slot = setup.slot
        self._held: Optional[Snapshot] = None
        ours, theirs = socket.socketpair()
        with theirs:
            self.pid = fork_helper(partial(_run_process, setup, theirs), {theirs.fileno()})
        ours.setblocking(False)
        self._stream = LineStream(loop, ours, self._take_news, lambda _: self._ended())

    def watch(self, attempt: int, task: int = 0) -> None:
        """Take a snapshot of each complete state of the checkpoint directory from now on.

        Args:
            attempt: The attempt that writes it.
            task: Process of the task. If it was killed, a directory at rest may hold half a file; 0: it has ended.
        """
        self._send_command({"watch": attempt, "task": task})

    def settle(self, *, is_orderly: bool = False) -> None:
        """Take a last snapshot, and stop watching; to be called when no process of the task is left.

        Without a watch before, it takes what is there as a state of before the first attempt.

        Args:
            is_orderly: The task ended by itself, so that no file can be half written.
        """
        self._send_command({"settle": is_orderly})

    def fetch(self, snapshot: Snapshot, sources: Sequence[Source]) -> None:
        """Fetch a snapshot from the first source that has it, after a fetch in progress."""
        self._send_command({"fetch": to_dict(snapshot), "sources": sources})

    def restore(self, snapshot: Optional[Snapshot], sources: Sequence[Source]) -> None:
        """Make the checkpoint directory equal to a snapshot, fetched if it is not held; None means empty.

        Replaces every order to fetch or to restore that is not done yet.
        """
        self._send_command({"restore": to_dict(snapshot), "sources": sources})

    def update_live(self, *, on: bool) -> None:
        """Update the checkpoint directory with each fetched snapshot, for a task that reads it."""
        self._send_command({"show": on})

    def remove_limit(self) -> None:
        """Send without a bandwidth limit, because this host will be gone soon."""
        self._send_command({"hurry": True})

    def close(self) -> None:
        """End the process; the supervisor waits for it."""
        self._stream.close()

    def _send_command(self, command: Dict[str, Any]) -> None:
        self._stream.send_data(json.dumps(command).encode() + b"\n")

    def _take_news(self, line: bytes) -> None:
        news: News = build(News, json.loads(line))
        self._held = news.held
        self._on_news(news)

    def _ended(self) -> None:
        why = f"the replicator of {self._slot} ended: see agent.log in the job's directory on its host"
        self._on_news(News(self._held, 0, error=why, ended=True))


# --- the process ------------------------------------------------------------------------------------------------


def _run_process(setup: Setup, control: socket.socket) -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(nothing, fd)
    os.nice(_NICE)
    threading.stack_size(_STACK)
    _Process(setup, control).run()


class _Process:
    """The replicator process; its main thread handles commands."""

    def __init__(self, setup: Setup, control: socket.socket) -> None:
        self._control = control
        self._send_lock = threading.Lock()
        self._setup = setup
        self._port = 0
        self._bucket = BandwidthLimit(setup.mib_s)
        self._store = SnapshotStore(setup.store)
        self._watcher = _Watcher(setup, self._store, self._report)
        self._mover = _Mover(setup, self._store, self._report)

    def run(self) -> None:
        note = self._listen()
        _thread(self._watcher.run)
        _thread(self._mover.run)
        self._report(note=note)
        with self._control.makefile("rb") as commands, contextlib.suppress(ConnectionResetError):
            for line in commands:
                self._handle(json.loads(line))

    def _listen(self) -> str:
        setup = self._setup
        try:
            listener = listen_for_links(setup.address)
        except RefusedError as error:
            return f"{setup.slot} cannot give its checkpoints to other hosts: {error}"
        self._port = listener.getsockname()[1]
        _thread(SnapshotServer(self._store, listener, setup.credentials, self._bucket).run)
        return ""

    def _handle(self, command: Dict[str, Any]) -> None:
        if "watch" in command or "settle" in command:
            self._watcher.commands.put(command)
            return
        if "hurry" in command:
            self._bucket.remove_limit()
            return
        if "show" in command:
            self._mover.updates_live = command["show"]
            return
        sources = [(str(address), int(port)) for address, port in command["sources"]]
        name = "restore" if "restore" in command else "fetch"
        snapshot = build(Snapshot, command[name]) if command[name] is not None else None
        self._mover.order(name, snapshot, sources)

    def _report(self, **happened: Any) -> None:
        news = to_dict(News(self._store.held, self._port, **happened))
        with self._send_lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._control.sendall(json.dumps(news).encode() + b"\n")


def _thread(run: Callable[[], None]) -> None:
    def body() -> None:
        try:
            run()
        except BaseException:  # noqa: BLE001 - reported in agent.log, and by the exit code
            import traceback

            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=body, daemon=True).start()


class _Watcher:
    """Take snapshots of what the task writes, at the command of another thread."""

    def __init__(self, setup: Setup, store: SnapshotStore, report: Callable[..., None]) -> None:
        self.commands: queue.SimpleQueue[Dict[str, Any]] = queue.SimpleQueue()
        self._setup = setup
        self._store = store
        self._report = report
        self._attempt = self._task = 0
        self._baseline: Optional[Keys] = None  # of the newest snapshot; None: nothing is watched
        self._seen: Keys = {}
        self._seen_at = self._taken_at = 0.0
        self._pause_s = 0.0
        self._has_reported = False

    def run(self) -> None:
        """Handle commands and watch, forever."""
        while True:
            act = self._look
            with contextlib.suppress(queue.Empty):
                command = self.commands.get(timeout=None if self._baseline is None else self._pause_s)
                act = partial(self._handle, command)
            started = time.monotonic()
            self._report_errors(act)
            self._pause_s = max(self._pause_s, min(_REST_S, _LOOK_COST * (time.monotonic() - started)))

    @property
    def _live(self) -> str:
        return os.path.realpath(self._setup.live)

    def _handle(self, command: Dict[str, Any]) -> None:
        if "watch" in command:
            self._attempt, self._task = command["watch"], command["task"]
            self._has_reported = False
            self._begin()
            return
        try:
            self._look_last(is_orderly=command["settle"])
        finally:
            self._baseline = None
            self._report(settled=self._attempt)

    def _report_errors(self, act: Callable[[], None]) -> None:
        """Call `act`; report an error once."""
        self._pause_s = _REST_S
        try:
            act()
        except (ChangedError, FileNotFoundError):
            self._pause_s = _LOOK_S
        except ReplicaError as error:
            self._report_once(str(error))
        except OSError as error:
            where = f" ({error.filename})" if isinstance(error.filename, str) else ""
            self._report_once(f"{self._setup.slot}'s checkpoint cannot be copied: {error.strerror}{where}")
        else:
            self._pause_s = _LOOK_S

    def _report_once(self, reason: str) -> None:
        if not self._has_reported:
            self._has_reported = True
            self._report(note=reason)

    def _begin(self) -> None:
        """Watch the directory from now on; what equals the newest snapshot is not new."""
        self._baseline = None
        self._setup.check()
        newest = self._store.newest
        items = newest.manifest.items if newest is not None else []
        self._baseline = replicated_keys(items, list_directory(self._live)) if items else {}
        self._seen, self._taken_at = {}, time.monotonic()

    def _look(self) -> None:
        """Take a snapshot of a new state that is complete while the task runs."""
        baseline = self._baseline or {}
        listing = read_listing(self._live)
        keys = {entry.path: entry.key for entry in listing.entries}
        now = time.monotonic()
        if keys != self._seen:
            self._seen, self._seen_at = keys, now
        state = complete_state(listing)
        if state is not None and (state.empty or state.keys == baseline):
            self._taken_at = now
            return
        if now - self._taken_at > _UNUSUAL_S and not self._has_reported:
            self._report_missing(state)
        if state is None:
            return
        if now - self._seen_at < QUIET_S or not self._is_task_alive():
            state = state.declared_part(baseline)
        if state is not None and state.keys != baseline:
            self._take(state)

    def _report_missing(self, state: Optional[State]) -> None:
        cause = (
            f"the directory was never unchanged for {QUIET_S:.0f} s;"
            " save less often, or with tf.train.CheckpointManager"
        )
        if state is None:
            cause = "a file of a checkpoint is missing"
        self._report_once(
            f"no complete checkpoint in {self._live} of {self._setup.slot} for {_UNUSUAL_S:.0f} s; the newest is not"
            f" copied to other hosts: {cause}"
        )

    def _is_task_alive(self) -> bool:
        """Return True unless the task is ending: a process that was killed may have left half a file."""
        task = read_stat(self._task)
        return task is not None and not task.ending

    def _look_last(self, *, is_orderly: bool) -> None:
        """Take what is complete although the task has ended; nothing can be half written if it ended by itself."""
        if self._baseline is None:
            self._begin()
        if self._baseline is None:
            return
        for left in reversed(range(_LAST_TRIES)):
            state = complete_state(read_listing(self._live))
            if state is not None and not is_orderly:
                state = state.declared_part(self._baseline)
            if state is None or state.keys == self._baseline or (state.empty and not is_orderly):
                return
            try:
                self._take(state)
            except ChangedError:
                if not left:
                    raise
            else:
                return

    def _take(self, state: State) -> None:
        is_new = take_snapshot(self._store, self._setup.slot, self._attempt, state)
        self._baseline, self._taken_at = state.keys, time.monotonic()
        self._has_reported = False
        if is_new:
            self._report()


class _Mover:
    """Fetch and restore, one after the other."""

    def __init__(self, setup: Setup, store: SnapshotStore, report: Callable[..., None]) -> None:
        self._setup = setup
        self._store = store
        self._report = report
        self._change = threading.Condition()
        self._orders: Dict[str, Tuple[Optional[Snapshot], List[Source]]] = {}
        self._fetching: Optional[Fetch] = None
        self.updates_live = False  # fetched snapshots go to the checkpoint directory at once

    def order(self, name: str, snapshot: Optional[Snapshot], sources: List[Source]) -> None:
        """Fetch a snapshot next, in place of one that waits for that, or restore one, in place of everything."""
        with self._change:
            if name == "restore":
                self._orders.clear()
                if self._fetching is not None and self._fetching.snapshot != snapshot:
                    self._fetching.cancel()
            self._orders[name] = (snapshot, sources)
            self._change.notify()

    def run(self) -> None:
        """Handle requests, forever."""
        while True:
            with self._change:
                self._change.wait_for(lambda: bool(self._orders))
                name = "restore" if "restore" in self._orders else "fetch"
                snapshot, sources = self._orders.pop(name)
            with contextlib.suppress(CancelledFetchError):
                if name == "restore":
                    self._restore(snapshot, sources)
                elif snapshot is not None:
                    self._fetch(snapshot, sources)

    def _fetch(self, snapshot: Snapshot, sources: List[Source]) -> None:
        try:
            if newer(snapshot, self._store.held):
                before = self._store.newest
                if self._fetch_snapshot(snapshot, sources) and self.updates_live:
                    self._show(snapshot, before.manifest if before is not None else None)
        except (ReplicaError, OSError) as error:
            self._report(error=_describe_error(error))
        else:
            self._report(fetched=snapshot)

    def _restore(self, snapshot: Optional[Snapshot], sources: List[Source]) -> None:
        reason, name = NO_REASON, ""
        try:
            self._setup.check()
            name = self._restore_snapshot(snapshot, sources)
        except (ReplicaError, OSError) as error:
            reason = Reason(_describe_error(error), reason_kind(error))
        self._report(restored=Restored(snapshot, reason), checkpoint=name)

    def _restore_snapshot(self, snapshot: Optional[Snapshot], sources: List[Source]) -> str:
        """Make the checkpoint directory equal to `snapshot`; return the name of its checkpoint, if known."""
        if snapshot is None:
            restore(self._setup.live, None)
            return ""
        newest = self._store.newest if self._store.held == snapshot else None
        if newest is None or not newest.is_intact():
            if newest is not None:
                self._store.drop()
            if not self._fetch_snapshot(snapshot, sources):
                return ""
        with self._store.reading(snapshot) as kept:
            if kept is None:
                raise ReplicaError(f"the checkpoint that {self._setup.slot} had fetched is gone: see its agent.log")
            if not self._setup.is_shared_with(kept.manifest):
                restore(self._setup.live, kept)
            return checkpoint_name(kept.manifest.items)

    def _show(self, snapshot: Snapshot, before: Optional[SnapshotManifest]) -> None:
        self._setup.check()
        with self._store.reading(snapshot) as kept:
            if kept is not None and not self._setup.is_shared_with(kept.manifest):
                refresh(self._setup.live, kept, before)

    def _fetch_snapshot(self, snapshot: Snapshot, sources: List[Source]) -> bool:
        fetch = Fetch(self._store, self._setup.credentials, snapshot, self._setup.is_shared_with)
        with self._change:
            if self._orders.get("restore", (snapshot,))[0] != snapshot:
                raise CancelledFetchError
            self._fetching = fetch
        try:
            return fetch.run(sources)
        finally:
            with self._change:
                self._fetching = None


def _describe_error(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
