"""The replicator: a child process of the supervisor that keeps the checkpoints of the job on every host.

It watches the checkpoint directory of the chief's task, keeps a copy of its newest complete state, sends that to the
replicators of the other hosts, and makes the checkpoint directory equal to a snapshot before an attempt starts. The
supervisor sends commands and receives news over a socket, in lines of JSON, and never waits for it.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any, Callable, Deque, Dict, FrozenSet, List, NamedTuple, NoReturn, Optional, Sequence, Tuple

from train.agent.checkpoints.snapshot import (
    Keys,
    Manifest,
    Observer,
    Snapshot,
    State,
    checkpoint_name,
    complete_state,
    newer,
    read_snapshot,
    replicated_keys,
    replication_problem,
)
from train.agent.checkpoints.store import (
    ChangedError,
    DirectoryEvents,
    ReplicaError,
    SnapshotOrigin,
    Store,
    TaskWatch,
    UnfinishedError,
    directory_identity,
    list_directory,
    read_listing,
    refresh,
    restore,
    take_snapshot,
    wait_for,
)
from train.agent.checkpoints.transfer import (
    BandwidthLimit,
    CancelledFetchError,
    Fetch,
    SnapshotServer,
    Source,
)
from train.agent.host.loop import Loop
from train.agent.host.ports import listen_for_links
from train.agent.host.spawn import close_descriptors, end_with
from train.agent.host.streams import LineStream
from train.agent.protocol.errors import RefusedError, reason_kind
from train.agent.protocol.records import NO_REASON, Reason, ReasonKind
from train.agent.protocol.session import Credentials

_NICE = 10
_STACK = 512 << 10  # bytes, of a thread
_GAP_S = 0.2  # between two listings of the directory
_IDLE_S = 5.0  # between two listings without an event
_POLL_S = 0.5  # … if the kernel reports no events
_REST_S = 5.0  # after a snapshot that there is no room for
_LAST_TRIES = 3
_FOREVER_S = 3600.0


class Restored(NamedTuple):
    """The answer to `Replicator.restore`."""

    snapshot: Optional[Snapshot]
    error: Reason = NO_REASON  # a sentence; empty: the checkpoint directory is equal to the snapshot


class News(NamedTuple):
    """News of the replicator: `held` and `port` are always valid, the other fields report what just happened."""

    held: Optional[Snapshot]  # what this host can give
    port: int  # where it gives it; 0: nowhere
    settled: Optional[int] = None  # the attempt whose last look is done
    fetched: Optional[Snapshot] = (
        None  # wanted, and done; not `held` where the directory is shared, or where that is newer
    )
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
    live: str  # the checkpoint directory, absolute, or a URL
    store: str  # where snapshots are kept, TASK/replica
    mark_directory: str  # what marks the processes of our task
    mib_s: float  # maximum number MiB a second leave this host; more than 0

    @property
    def credentials(self) -> Credentials:
        """Return what the hosts of the job share."""
        return Credentials(self.job, self.secret, self.slot)

    @property
    def is_url(self) -> bool:
        """Return True if the checkpoints are not local files."""
        return "://" in self.live

    def check(self) -> None:
        """Check that the checkpoint directory may be changed.

        Raises:
            ReplicaError: it holds other things as well.
        """
        reason = replication_problem(
            os.path.realpath(self.live), os.path.realpath(self.store), os.path.expanduser("~")
        )
        if reason:
            raise ReplicaError(reason)

    def is_shared_with(self, manifest: Manifest) -> bool:
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
            self.pid = _fork(setup, theirs, os.getpid())
        ours.setblocking(False)
        self._stream = LineStream(loop, ours, self._take_news, lambda _: self._ended())

    def watch(self, attempt: int, task: int = 0) -> None:
        """Take a snapshot of each complete state of the checkpoint directory from now on.

        Args:
            attempt: The attempt that writes it.
            task: Process of the task; shows whether the task closed its files or was killed.
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
        self._send_command({"fetch": snapshot, "sources": sources})

    def restore(self, snapshot: Optional[Snapshot], sources: Sequence[Source]) -> None:
        """Make the checkpoint directory equal to a snapshot, fetched if it is not held; None means empty.

        Replaces every order to fetch or to restore that is not done yet.
        """
        self._send_command({"restore": snapshot, "sources": sources})

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
        news = _read_news(json.loads(line))
        self._held = news.held
        self._on_news(news)

    def _ended(self) -> None:
        why = f"the replicator of {self._slot} ended: see agent.log in the job's directory on its host"
        self._on_news(News(self._held, 0, error=why, ended=True))


def _read_news(values: Dict[str, Any]) -> News:
    restored = values.get("restored")
    if restored is not None:
        text, kind = restored[1]
        values["restored"] = Restored(read_snapshot(restored[0]), Reason(text, ReasonKind(kind)))
    for name in ("held", "fetched"):
        values[name] = read_snapshot(values.get(name))
    return News(**values)


# --- the process ------------------------------------------------------------------------------------------------


def _fork(setup: Setup, control: socket.socket, supervisor: int) -> int:
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _run_child(setup, control, supervisor)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return pid


def _run_child(setup: Setup, control: socket.socket, supervisor: int) -> NoReturn:
    code = 1
    try:
        gc.freeze()  # sockets of the supervisor must never be closed by their number, which may be another's here
        os.setsid()
        if not end_with(supervisor):
            os._exit(0)
        _reset_signals()
        _keep_descriptors(control.fileno())
        os.nice(_NICE)
        threading.stack_size(_STACK)
        _Process(setup, control, supervisor).run()
        code = 0
    except BaseException:  # noqa: BLE001 - reported in agent.log, and by the exit code
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _keep_descriptors(control: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(nothing, fd)
    close_descriptors({control})


class _Process:
    """The replicator process; its main thread handles commands."""

    def __init__(self, setup: Setup, control: socket.socket, supervisor: int) -> None:
        self._control = control
        self._send_lock = threading.Lock()
        self._setup = setup
        self._port = 0
        self._bucket = BandwidthLimit(setup.mib_s)
        self._store = Store(setup.store)
        self._watcher = _Watcher(setup, supervisor, self._store, self._report)
        self._mover = _Mover(setup, self._store, self._report)

    def run(self) -> None:
        note = self._listen()
        _thread(self._watcher.run)
        _thread(self._mover.run)
        self._report(note=note)
        with self._control.makefile("rb") as commands:
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
            self._watcher.queue_command(command)
            return
        if "hurry" in command:
            self._bucket.remove_limit()
            return
        if "show" in command:
            self._mover.updates_live = command["show"]
            return
        sources = [(str(address), int(port)) for address, port in command["sources"]]
        if "restore" in command:
            self._mover.restore(read_snapshot(command["restore"]), sources)
        else:
            snapshot = read_snapshot(command["fetch"])
            if snapshot is not None:
                self._mover.fetch(snapshot, sources)

    def _report(self, **happened: Any) -> None:
        news = {"held": self._store.held, "port": self._port, **happened}
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
    """Take snapshots of what the task writes."""

    def __init__(self, setup: Setup, supervisor: int, store: Store, report: Callable[..., None]) -> None:
        self._setup = setup
        self._supervisor = supervisor
        self._store = store
        self._report = report
        self._commands: Deque[Dict[str, Any]] = collections.deque()
        self._woken, self._wake = os.pipe()
        self._attempt = 0
        self._observer: Optional[Observer] = None
        self._task = TaskWatch(supervisor, setup.mark_directory, 0)
        self._events: Optional[DirectoryEvents] = None
        self._events_of: Optional[Tuple[int, int]] = None
        self._happened = False
        self._is_unproven = False  # something is new, and its writer has ended in an unknown way
        self._observed_at = 0.0
        self._rest_until = 0.0
        self._has_reported = False

    def queue_command(self, command: Dict[str, Any]) -> None:
        """Queue a command, from another thread."""
        self._commands.append(command)
        os.write(self._wake, b"o")

    def run(self) -> None:
        """Handle commands and watch, forever."""
        while True:
            fds = [self._woken, *([self._events.fileno()] if self._events is not None else [])]
            wait_for(fds, self._wait_s())
            while self._commands:
                os.read(self._woken, 1)
                self._handle(self._commands.popleft())
            self._read_events()
            if self._observer is not None and self._wait_s() <= 0:
                self._report_errors(self._observe)

    @property
    def _live(self) -> str:
        return os.path.realpath(self._setup.live)

    def _wait_s(self) -> float:
        if self._observer is None:
            return _FOREVER_S
        now = time.monotonic()
        due = self._observer.wait_s(now)
        pause = 0.0 if self._happened else _POLL_S if self._is_unproven or self._events is None else _IDLE_S
        until = max(self._observed_at + _GAP_S, self._rest_until)
        return max(until - now, min(self._observed_at + pause - now, _FOREVER_S if due is None else due))

    def _handle(self, command: Dict[str, Any]) -> None:
        if self._setup.is_url:
            if "settle" in command:
                self._report(settled=self._attempt)
            return
        if "watch" in command:
            self._attempt = command["watch"]
            self._task = TaskWatch(self._supervisor, self._setup.mark_directory, command["task"])
            self._has_reported = False
            self._report_errors(self._begin)
        else:
            self._report_errors(lambda: self._observe_last(is_orderly=command["settle"]))
            self._stop_events()
            self._observer = None
            self._report(settled=self._attempt)

    def _report_errors(self, act: Callable[[], None]) -> None:
        """Call `act`; report an error once."""
        try:
            act()
        except ReplicaError as error:
            self._report_once(str(error))
        except OSError as error:
            where = f" ({error.filename})" if isinstance(error.filename, str) else ""
            self._report_once(f"{self._setup.slot}'s checkpoint cannot be copied: {error.strerror}{where}")

    def _report_once(self, reason: str) -> None:
        self._rest_until = time.monotonic() + _REST_S
        if not self._has_reported:
            self._has_reported = True
            self._report(note=reason)

    def _begin(self) -> None:
        self._observer = None
        self._setup.check()
        self._observer = Observer(self._replicated_keys())
        self._happened = True

    def _replicated_keys(self) -> Keys:
        """Return the keys of the directory as far as it equals the newest snapshot."""
        with self._store.reading() as kept:
            return replicated_keys(kept.manifest.items, list_directory(self._live)) if kept is not None else {}

    def _read_events(self) -> None:
        if self._events is not None:
            self._happened = self._events.read() or self._happened

    def _follow_directory(self) -> None:
        """Watch the directory for events; it may have been removed and created again."""
        try:
            status = os.stat(self._live)
        except FileNotFoundError:
            self._stop_events()
            return
        if self._events_of != (status.st_dev, status.st_ino):
            self._stop_events()
            self._events_of = (status.st_dev, status.st_ino)
            with contextlib.suppress(OSError):
                self._events = DirectoryEvents(self._live)

    def _stop_events(self) -> None:
        if self._events is not None:
            self._events.close()
        self._events = self._events_of = None

    def _state(self, observer: Observer) -> Optional[State]:
        # Listed first, then asked who writes: what was closed by then, and is not changed later, is whole.
        listing = read_listing(self._live, frozenset())
        state = complete_state(listing, observer.baseline)
        if state is None or state.keys == observer.baseline:
            return state
        return complete_state(listing._replace(writing=self._task.writing(self._live)), observer.baseline)

    def _observe(self) -> None:
        observer = self._observer
        if observer is None:
            return
        self._follow_directory()
        self._read_events()
        self._happened = False
        self._observed_at = time.monotonic()
        moved = self._events.moved if self._events is not None else frozenset()
        state = self._state(observer)
        is_new = state is not None and state.keys != observer.baseline
        self._is_unproven = is_new and not self._task.alive()
        if self._is_unproven:
            state = None
        threads = self._task.threads() if is_new else {}
        if observer.is_due(state, moved, time.monotonic(), threads) and state is not None:
            try:
                self._take(observer, state, observer.to_check(state, moved))
            except ChangedError:
                self._happened = True
            except UnfinishedError as error:
                observer.unfinished(state, str(error))
                self._happened = True

    def _observe_last(self, *, is_orderly: bool) -> None:
        if self._observer is None:
            self._begin()
        observer = self._observer
        for _ in range(_LAST_TRIES):
            self._read_events()
            moved = self._events.moved if self._events is not None else frozenset()
            state = self._state(observer) if observer is not None else None
            last = observer.last(state, moved, is_orderly=is_orderly) if observer is not None else None
            if observer is None or last is None:
                return
            with contextlib.suppress(ChangedError):
                with contextlib.suppress(UnfinishedError):
                    self._take(observer, last, frozenset() if is_orderly else observer.to_check(last, moved))
                return

    def _take(self, observer: Observer, state: State, checked: FrozenSet[str]) -> None:
        shot = SnapshotOrigin(self._live, self._setup.slot, directory_identity(self._live), self._attempt)
        is_new = take_snapshot(self._store, shot, state, checked)
        observer.mark_taken(state)
        self._has_reported = False
        if is_new:
            self._report()


class _Mover:
    """Fetch and restore, one after the other."""

    def __init__(self, setup: Setup, store: Store, report: Callable[..., None]) -> None:
        self._setup = setup
        self._store = store
        self._report = report
        self._change = threading.Condition()
        self._next: Optional[Tuple[Snapshot, List[Source]]] = None
        self._restore: Optional[Tuple[Optional[Snapshot], List[Source]]] = None
        self._fetching: Optional[Fetch] = None
        self.updates_live = False  # fetched snapshots go to the checkpoint directory at once

    def fetch(self, snapshot: Snapshot, sources: List[Source]) -> None:
        """Fetch a snapshot next, in place of any other that has not started."""
        with self._change:
            self._next = (snapshot, sources)
            self._change.notify()

    def restore(self, snapshot: Optional[Snapshot], sources: List[Source]) -> None:
        """Restore a snapshot next, in place of everything else."""
        with self._change:
            self._next = None
            self._restore = (snapshot, sources)
            if self._fetching is not None and self._fetching.snapshot != snapshot:
                self._fetching.cancel()
            self._change.notify()

    def run(self) -> None:
        """Handle requests, forever."""
        while True:
            with self._change:
                self._change.wait_for(lambda: self._next is not None or self._restore is not None)
                restoring, self._restore = self._restore, None
                following = None
                if restoring is None:
                    following, self._next = self._next, None
            with contextlib.suppress(CancelledFetchError):
                if restoring is not None:
                    self._do_restore(*restoring)
                elif following is not None:
                    self._do_fetch(*following)

    def _do_fetch(self, snapshot: Snapshot, sources: List[Source]) -> None:
        try:
            if not self._setup.is_url and newer(snapshot, self._store.held):
                with self._store.reading() as kept:
                    before = kept.manifest if kept is not None else None
                if self._fetch_snapshot(snapshot, sources) and self.updates_live:
                    self._show(snapshot, before)
        except (ReplicaError, OSError) as error:
            self._report(error=_describe_error(error))
        else:
            self._report(fetched=snapshot)

    def _do_restore(self, snapshot: Optional[Snapshot], sources: List[Source]) -> None:
        reason, name = NO_REASON, ""
        try:
            if not self._setup.is_url:
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
        with self._store.reading(snapshot) as kept:
            is_intact = kept is not None and kept.is_intact()
        if not is_intact:
            if kept is not None:
                self._store.drop()
            if not self._fetch_snapshot(snapshot, sources):
                return ""
        with self._store.reading(snapshot) as kept:
            if kept is None:
                raise ReplicaError(f"the checkpoint that {self._setup.slot} had fetched is gone: see its agent.log")
            if not self._setup.is_shared_with(kept.manifest):
                restore(self._setup.live, kept)
            return checkpoint_name(kept.manifest.items)

    def _show(self, snapshot: Snapshot, before: Optional[Manifest]) -> None:
        self._setup.check()
        with self._store.reading(snapshot) as kept:
            if kept is not None and not self._setup.is_shared_with(kept.manifest):
                refresh(self._setup.live, kept, before)

    def _fetch_snapshot(self, snapshot: Snapshot, sources: List[Source]) -> bool:
        fetch = Fetch(self._store, self._setup.credentials, snapshot, self._setup.is_shared_with)
        with self._change:
            if self._restore is not None and self._restore[0] != snapshot:
                raise CancelledFetchError
            self._fetching = fetch
        try:
            return fetch.run(sources)
        finally:
            with self._change:
                self._fetching = None


def _describe_error(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
