"""One conversation of the agent: requests on stdin, answers on stdout; see train.agent.protocol.records.

Modules are imported when a request needs them, so that the first message is sent early.
"""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Dict, Optional, Type

from train.agent.files.paths import HostPaths
from train.agent.host.ports import host_address
from train.agent.protocol import records
from train.agent.protocol.channel import Channel
from train.agent.protocol.errors import ClientGoneError, RefusedError
from train.agent.protocol.records import MalformedRecordError, Record, Refusal, Refused

if TYPE_CHECKING:
    from train.agent.requests.prepare import Reservation

IDLE_S = 3600.0  # for the next request
_LAST_OF_HOST = 4  # arguments before those of `enter`
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Module of the agent and function that answer a request: ``answer(channel, host, request)`` returns the answer,
# or None if it has sent everything itself.
_ANSWERS: Dict[Type[Any], str] = {
    records.Bootstrap: "requests.bootstrap.bootstrap",
    records.FetchContents: "requests.results.send_contents",
    records.Follow: "requests.follow.follow",
    records.GetBundle: "requests.results.get_bundle",
    records.GetJoinInfo: "requests.results.get_join_info",
    records.Inspect: "host.jobs.report_jobs",
    records.ListFiles: "requests.results.list_files",
    records.ListJobs: "requests.results.list_jobs",
    records.PruneJobs: "requests.results.prune_jobs",
    records.PushFiles: "requests.push.push_files",
    records.ReadFiles: "requests.results.read_files",
    records.ReadClock: "host.jobs.read_clock",
    records.Release: "requests.stop.release_host",
    records.Stop: "requests.stop.stop",
}


class Conversation:
    """Requests and answers over one connection.

    Args:
        channel: The connection.
        host: Paths of the fleet on this host.
        umask: With which the user's script is started.
    """

    def __init__(self, channel: Channel, host: HostPaths, umask: int) -> None:
        self._channel = channel
        self._host = host
        self._umask = umask
        self._reservation: "Optional[Reservation]" = None

    def run(self) -> None:
        """Answer requests until the client disconnects."""
        try:
            while True:
                try:
                    self._answer(self._channel.receive(IDLE_S))
                except ClientGoneError:
                    raise
                except Exception as error:  # noqa: BLE001 - the client always gets an error
                    self._channel.send(self._to_refusal(error))
        except ClientGoneError:
            return
        finally:
            self._release_reservation()

    def _release_reservation(self) -> None:
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None

    def _answer(self, request: Record) -> None:
        if self._reservation is not None:
            self._reservation.end_relay()  # a process with threads must not fork; all hosts are prepared by now
        if isinstance(request, records.Prepare):
            self._prepare(request)
        elif isinstance(request, records.Chunk):
            # Part of a refused or unrequested stream: skipped before the next request.
            for _ in self._channel.payload(request.payload, IDLE_S):
                continue
        elif isinstance(request, records.Commit):
            self._commit(request)
        elif isinstance(request, records.SmokeTest):
            self._run_smoke_test(request)
        elif type(request) in _ANSWERS:
            module, _, name = _ANSWERS[type(request)].rpartition(".")
            answer = getattr(import_module(f"train.agent.{module}"), name)
            record = answer(self._channel, self._host, request)
            if record is not None:
                self._channel.send(record)
        else:
            raise RefusedError(Refusal.REQUEST, f"{type(request).__name__} is not a request")

    def _prepare(self, request: records.Prepare) -> None:
        from train.agent.requests.prepare import prepare

        self._release_reservation()
        self._reservation = prepare(self._channel, self._host, request)
        import train.agent.requests.commit  # noqa: F401 - while the client waits for the other hosts

    def _commit(self, request: records.Commit) -> None:
        from train.agent.requests.commit import commit

        if self._reservation is None:
            raise RefusedError(Refusal.REQUEST, f"{request.slot} of job {request.job} is not prepared on this host")
        try:
            pid = commit(self._reservation, request, self._umask)
        except BaseException:
            self._release_reservation()
            raise
        self._reservation = None
        self._channel.send(records.Committed(pid))

    def _run_smoke_test(self, request: records.SmokeTest) -> None:
        from train.agent.requests.smoke_test import run_smoke_test

        if self._reservation is None:
            raise RefusedError(Refusal.REQUEST, "nothing is prepared on this host")
        try:
            result = run_smoke_test(self._channel, self._reservation, request)
        finally:
            self._release_reservation()
        self._channel.send(result)

    def _to_refusal(self, error: Exception) -> Refused:
        if isinstance(error, RefusedError):
            return error.record
        if isinstance(error, MalformedRecordError):
            return Refused(Refusal.REQUEST, f"the request cannot be read: {error}")
        if isinstance(error, OSError) and error.errno in _FULL:
            from train.agent.files.disk import free_space, readable_size

            free, total = (readable_size(count) for count in free_space(self._host.root))
            reason = f"no space left on this host: {self._host.root} has {free} free of {total} ({error.strerror})"
            return Refused(Refusal.DISK, reason, "free some space on the host")
        return Refused(Refusal.FAULT, f"{type(error).__name__}: {error} ({_error_location(error)})")


def _error_location(error: Exception) -> str:
    trace = error.__traceback__
    if trace is None:
        return "nowhere"
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.join(os.path.expanduser("~"), os.path.expanduser(path)))


def main() -> None:
    """Hold one conversation on stdin and stdout, or run a program in the environment of a task.

    The arguments are the root directory, the hash of the agent, and, for a slot, the directory of its host. If a job
    and a slot follow, the remaining arguments are a program to run.
    """
    root, digest, *shared = sys.argv[1:4]
    host = HostPaths(_absolute(root), *map(_absolute, filter(None, shared)))
    umask = os.umask(0o077)
    if len(sys.argv) > _LAST_OF_HOST:
        from train.agent.requests.enter import enter

        job, slot, *words = sys.argv[_LAST_OF_HOST:]
        enter(host, job, slot, words, umask)
    channel = Channel(0, 1)
    version = "{}.{}.{}".format(*sys.version_info[:3])
    address = host_address(os.environ.get("SSH_CONNECTION", ""))
    try:
        channel.send(records.Hello(digest, version, os.getpid(), address))
    except ClientGoneError:
        return
    Conversation(channel, host, umask).run()
