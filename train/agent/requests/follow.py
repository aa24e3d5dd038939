"""The request Follow: send the records and log of a task from an offset, in order and without a gap.

Attempts are sent one after the other. Attempts without this host are skipped.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import time
from typing import Callable, List, Optional, Sequence, Tuple, Union

from train.agent.files.disk import size_of
from train.agent.files.journal import attempts, log_at, read_job, read_result, states
from train.agent.files.paths import HostPaths, TaskPaths
from train.agent.files.times import offset_since, piece_times
from train.agent.host import control
from train.agent.host.jobs import find_task, lost_result
from train.agent.protocol import records
from train.agent.protocol.channel import Channel
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Beat, Follow, JobResult, Stop

BEAT_S = 5.0
SLICE = 1 << 17  # bytes of log in one record
LONGEST_INTERVAL_S = 1.0
_MOST_UPDATES = 64  # handled before new output is sent
_BLOCK = 1 << 16
_PROGRESS = b'{"record":"progress"'
_PASSED_ON = (_PROGRESS, b'{"record":"usage"')
_STOPPED = b'{"record":"stopped"'


def tail_offset(path: str, lines: int) -> int:
    """Return the offset of the last `lines` lines of a file; the last one may lack its newline."""
    end = size_of(path)
    if lines <= 0 or not end:
        return end
    with open(path, "rb") as file, mmap.mmap(file.fileno(), end, access=mmap.ACCESS_READ) as data:
        newline = end - 1 if data[end - 1 : end] == b"\n" else end
        for _ in range(lines):
            newline = data.rfind(b"\n", 0, newline)
            if newline < 0:
                return 0
        return newline + 1


def since_offset(log: str, times: str, at: float) -> int:
    """Return the offset of the line that contains the first output since a time; the end if there is none.

    If the times are missing, all of a log that was changed since then counts.
    """
    try:
        modified_at = os.stat(log).st_mtime
    except OSError:
        return 0
    if size_of(times) == 0:
        return 0 if modified_at >= at else size_of(log)
    offset = offset_since(times, at)
    if offset < 0:
        return size_of(log)
    with open(log, "rb") as file:
        begin = max(0, offset - _BLOCK)
        file.seek(begin)
        newline = file.read(offset - begin).rfind(b"\n")
    return begin + newline + 1 if newline >= 0 or begin == 0 else offset


def _omitted_range(size: int, request: Follow) -> Tuple[int, int]:
    """Return start and end of the omitted middle of a log of `size` bytes; both 0 if nothing is omitted."""
    if request.head_bytes < 0 or size <= request.head_bytes + request.tail_bytes:
        return 0, 0
    return request.head_bytes, size - request.tail_bytes


class _Stream:
    """Send log and records of one attempt, each record after the output that was written before it."""

    def __init__(
        self, channel: Channel, paths: TaskPaths, attempt: int, request: Follow, now: Callable[[], float]
    ) -> None:
        self._channel = channel
        self._now = now
        self._slot = request.slot
        self._paths = paths
        self._task = ""
        self._logs = request.logs
        self._log = paths.log(attempt)
        self._times = paths.times(attempt)
        self._records = paths.records(attempt)
        self._log_fd = -1
        self._omitted = _omitted_range(size_of(self._log), request)
        self._brief = request.head_bytes >= 0
        self.attempt = attempt
        self.record_offset = request.record_offset
        self.log_offset = request.log_offset
        if request.tail_lines >= 0:
            self.log_offset = max(self.log_offset, tail_offset(self._log, request.tail_lines))
        if request.since:
            self.log_offset = max(self.log_offset, since_offset(self._log, self._times, request.since))

    def send_new(self) -> bool:
        """Send everything that is on disk now; return True if there was output."""
        before = self.log_offset
        lines = self._new_records()
        for line in lines:
            self._send_log(log_at(line))
            if not (self._brief and line.startswith(_PROGRESS)):
                self._channel.send_raw(line)
            self.record_offset += len(line)
        self._send_log(size_of(self._log))
        if lines:
            self._channel.send(self.beat())
        return self.log_offset > before

    def beat(self) -> Beat:
        """Return a heartbeat with the current offsets."""
        return Beat(self._now(), self.record_offset, self.log_offset, self.attempt)

    def _new_records(self) -> List[bytes]:
        if size_of(self._records) <= self.record_offset:
            return []
        with open(self._records, "rb") as file:
            file.seek(self.record_offset)
            data = file.read()
        return data[: data.rfind(b"\n") + 1].splitlines(keepends=True)

    def _send_log(self, until: int) -> None:
        if not self._logs or until <= self.log_offset:
            return
        if not self._task:
            self._task = next((state.task for state in states(self._paths, self.attempt)), "")
        if self._log_fd < 0:
            self._log_fd = os.open(self._log, os.O_RDONLY | os.O_CLOEXEC)
        begin, end = self._omitted
        while self.log_offset < until:
            if begin <= self.log_offset < end:
                self.log_offset = end
                continue
            limit = begin if self.log_offset < begin else until
            data = os.pread(self._log_fd, min(SLICE, min(limit, until) - self.log_offset), self.log_offset)
            if not data:
                return
            size, at, marks = piece_times(self._times, self.log_offset, len(data))
            log = records.Log(self._slot, self._task, self.attempt, self.log_offset, size, at, marks)
            self._channel.send(log, data[:size])
            self.log_offset += size

    def close(self) -> None:
        """Close the log."""
        if self._log_fd >= 0:
            os.close(self._log_fd)
            self._log_fd = -1


def follow(channel: Channel, host: HostPaths, request: Follow) -> None:
    """Answer Follow: send everything.

    Raises:
        ClientGoneError: the client disconnected.
        RefusedError: the task does not exist here.
    """
    Follower(channel, host, request).run()


class Follower:
    """State of one Follow request.

    Args:
        channel: To the client.
        host: Paths of the fleet on this host.
        request: What was asked.
    """

    def __init__(self, channel: Channel, host: HostPaths, request: Follow) -> None:
        self._channel = channel
        self._request = request
        self._paths = find_task(host, request.job, request.slot)
        self._clock_correction_s = float((read_job(self._paths) or {}).get("clock_correction_s", 0.0))
        self._stream: Optional[_Stream] = None
        self._current_attempt = max(0, request.attempt - 1)  # attempts up to this one are complete
        self._start_first_attempt()
        self._supervisor: Optional[socket.socket] = None
        self._interval_s = min(request.interval_s, LONGEST_INTERVAL_S)
        self._sent_at = 0.0  # the newest output
        self._is_subscribing = False  # a sign of life that has not come yet
        self._received_at = time.monotonic()
        self._stop: Optional[Stop] = None
        self._killed = False

    def _now(self) -> float:
        """Return the time as it is stored with output and records."""
        return time.time() + self._clock_correction_s

    def _start_first_attempt(self) -> None:
        """Start with the requested attempt, or with the next one if this host did not take part in it."""
        request = self._request
        numbers = [number for number in attempts(self._paths) if number > self._current_attempt]
        if not numbers:
            return
        first = numbers[0] if request.attempt else numbers[-1]
        if first == request.attempt or not request.attempt:
            self._current_attempt = first
            self._stream = _Stream(self._channel, self._paths, first, request, self._now)
        else:
            self._start_attempt(first)

    def _start_attempt(self, attempt: int) -> None:
        request = self._request._replace(log_offset=0, record_offset=0, tail_lines=-1)
        self._current_attempt = attempt
        if self._stream is not None:
            self._stream.close()
        self._stream = _Stream(self._channel, self._paths, attempt, request, self._now)

    def _next_attempt(self, over: bool) -> int:
        """Return the attempt to continue with once the current one is complete; 0 if there is none yet.

        Args:
            over: Whether nothing more will be written at all.
        """
        number = next((candidate for candidate in attempts(self._paths) if candidate > self._current_attempt), 0)
        if not number or over or self._stream is None:
            return number
        history = states(self._paths, self._current_attempt)
        ended = not history or any(state.phase is records.Phase.EXITED for state in history)
        return number if ended or states(self._paths, number) else 0

    def run(self) -> None:
        """Send everything, up to End.

        Raises:
            ClientGoneError: the client disconnected.
        """
        self._connect_supervisor()
        try:
            result = self._send_all()
        finally:
            if self._supervisor is not None:
                self._supervisor.close()
            if self._stream is not None:
                self._stream.close()
        if result is not None:
            self._channel.send(result)
        if self._stop is not None:
            self._channel.send(records.Stopped(self._killed, running=True))
        self._channel.send(records.End())

    def _connect_supervisor(self) -> None:
        """Subscribe to the supervisor; the replacement of a killed one listens at the same path."""
        if self._supervisor is not None:
            self._supervisor.close()
        self._supervisor = control.connect(self._paths.control)
        if self._supervisor is not None:
            self._received_at = time.monotonic()
            self._subscribe()
            if self._stop is not None:
                control.send_record(self._supervisor, self._stop)

    def _subscribe(self) -> None:
        """Subscribe again, which the supervisor always answers; one request at a time, so sending never blocks."""
        if self._supervisor is not None and not self._is_subscribing:
            self._is_subscribing = control.send_record(
                self._supervisor, Follow(self._request.job, self._request.slot)
            )

    def _send_all(self) -> Optional[JobResult]:
        """Send everything; return the result of the job, or None if it is running and its end is not awaited."""
        is_complete = False
        while True:
            began, alive = self._now(), self._supervisor is not None
            # Looked for before the last bytes are: nothing is written after the result.
            result = read_result(self._paths)
            is_last = result is not None or not alive or not self._request.follow
            number = self._next_attempt(over=is_last)
            self._send_new()
            if number:
                self._start_attempt(number)
            elif is_last and not (alive and self._stop is not None):
                is_lost = result is None and not alive
                return lost_result(self._paths, self._request.job, self._current_attempt) if is_lost else result
            else:
                if not is_complete:
                    is_complete = True
                    self._channel.send(self._beat()._replace(at=began, complete=True))
                self._wait()

    def _beat(self) -> Beat:
        return self._stream.beat() if self._stream is not None else Beat(self._now())

    def _send_new(self) -> None:
        if self._stream is not None and self._stream.send_new():
            self._sent_at = time.monotonic()

    def _wait(self) -> None:
        """Wait for an update of the supervisor, a request of the client, or the next heartbeat.

        Output that follows earlier output within the interval that the client requested waits for its end.
        """
        if self._supervisor is None:
            return
        pause_s = self._sent_at + self._interval_s - time.monotonic()
        if pause_s > 0 and _ready([self._channel], pause_s):
            self._take_request()
            return
        ready = _ready([self._supervisor, self._channel], BEAT_S)
        if not ready:
            unanswered_s = round(time.monotonic() - self._received_at, 1)
            self._channel.send(self._beat()._replace(unanswered_s=unanswered_s, complete=True))
            self._subscribe()
        if self._channel.fileno() in ready:
            self._take_request()
        if self._supervisor.fileno() in ready:
            self._handle_updates()

    def _take_request(self) -> None:
        request = self._channel.received()
        while request is not None:
            if not isinstance(request, Stop):
                raise RefusedError(records.Refusal.REQUEST, "while a job is followed, it can only be stopped")
            self._stop = request
            if self._supervisor is not None:
                control.send_record(self._supervisor, request)
            request = self._channel.buffered()

    def _handle_updates(self) -> None:
        """Handle the updates that have arrived: what they announce is read from the files."""
        for _ in range(_MOST_UPDATES):
            packet = control.receive_packet(self._supervisor) if self._supervisor is not None else None
            if packet is None:
                return
            self._received_at, self._is_subscribing = time.monotonic(), False
            if not packet:
                self._connect_supervisor()
                return
            if packet.startswith(_PASSED_ON):
                self._channel.send_raw(packet)
            elif packet.startswith(_STOPPED):
                self._killed = getattr(records.decode(packet), "killed", False)


def _ready(sources: Sequence[Union[Channel, socket.socket]], timeout_s: float) -> List[int]:
    """Return the descriptors of those that can be read within a time."""
    poll = select.poll()
    for source in sources:
        poll.register(source, select.POLLIN)
    return [fd for fd, _ in poll.poll(timeout_s * 1000)]
