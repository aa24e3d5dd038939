"""`fleet exec`: run a command on the hosts of a fleet at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import typer

from fleet.cli.application import AFTER_DASHES, WithProgram, command
from fleet.cli.options import FLEET, HOSTS, OUTPUT, Output, argument
from fleet.cli.runtime import CommandEnded, resolve_fleet, session
from fleet.errors import CancelledError, FleetError, UsageError, fold
from fleet.events import CommandOutput, CommandResult, HostResult
from fleet.fleets.access import ALL, select_hosts
from fleet.fleets.agents import ExistingFleet
from fleet.remote.fanout import Outcome, fan_out, raise_failures
from fleet.steps import Step
from provision.model import Host
from train.run_command import run_command as host_command

if TYPE_CHECKING:
    from fleet.remote.ssh.connection import HostConnection


HELD_MAX = 256 * 1024
"""Bytes of output of one host that are held back."""
HELD_S = 5.0
"""Longest time for which output is held back, in seconds."""
_PARTIAL_MAX = 64 * 1024

_Streams = dict[str, bytearray]


class Gathering:
    """Output of one command on several hosts.

    It is held back until all hosts have finished, so that equal output is shown once. When it is too much or too old,
    it is passed on, and so are all further lines, each when it is complete.

    Args:
        hosts: Names of the hosts, in the order of the output.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._held: dict[str, _Streams] = {host: {} for host in hosts}
        self._since: float | None = None
        self._streams = len(hosts) == 1

    def add(self, host: str, stream: str, data: bytes, now: float) -> list[CommandOutput]:
        """Add output of a host, or none; return the output to show now.

        Args:
            host: Name of the host.
            stream: ``stdout`` or ``stderr``.
            data: The bytes.
            now: The time, in seconds.
        """
        if data:
            self._held[host].setdefault(stream, bytearray()).extend(data)
            self._since = now if self._since is None else self._since
        if self._streams:
            return self._lines(host)
        size = sum(map(len, self._held[host].values()))
        if size > HELD_MAX or (self._since is not None and now - self._since > HELD_S):
            self._streams = True
            return [output for name in self._held for output in self._lines(name)]
        return []

    def finish(self) -> list[CommandOutput]:
        """Return the rest of the output, that of hosts with equal output once."""
        groups: dict[tuple[tuple[str, bytes], ...], list[str]] = {}
        for host, streams in self._held.items():
            content = tuple((stream, bytes(data)) for stream, data in sorted(streams.items()) if data)
            groups.setdefault(content, []).append(host)
            streams.clear()
        return [
            CommandOutput(tuple(hosts), stream, data) for content, hosts in groups.items() for stream, data in content
        ]

    def _lines(self, host: str) -> list[CommandOutput]:
        outputs = []
        for stream, data in self._held[host].items():
            end = len(data) if len(data) > _PARTIAL_MAX else data.rfind(b"\n") + 1
            if end:
                outputs.append(CommandOutput((host,), stream, bytes(data[:end])))
                del data[:end]
        return outputs


class _Execution:
    """One command on several hosts.

    Args:
        command: Program and arguments.
        hosts: The hosts.
        fleet: Their fleet, whose sink takes the output.
    """

    def __init__(self, command: Sequence[str], hosts: Sequence[Host], fleet: ExistingFleet) -> None:
        self._command, self._hosts, self._fleet = command, hosts, fleet
        self._gathering = Gathering([host.name for host in hosts])
        self._lock = threading.Lock()
        self._connections: list[HostConnection] = []
        self._started: dict[str, FleetError | None] = {}

    def run(self) -> list[Outcome[int]]:
        """Run the command, again on hosts that a firewall rule blocked before it was changed."""
        outcomes = self._fan_out(self._hosts)
        unreached = [outcome for outcome in outcomes if outcome.error and outcome.host.name not in self._started]
        retried = (
            {each.host.name: each for each in self._fleet.access.retried(unreached, self._fan_out)}
            if unreached
            else {}
        )
        return [retried.get(outcome.host.name, outcome) for outcome in outcomes]

    def finish(self) -> None:
        """Show the output that is held back."""
        self._show(self._gathering.finish)

    def _fan_out(self, hosts: Sequence[Host]) -> list[Outcome[int]]:
        return fan_out(hosts, self._run_on, abort=self._sever)

    def _run_on(self, host: Host) -> int:
        from fleet.remote.ssh.connection import connect, run_remote, share_window

        if (error := self._started.get(host.name)) is not None:
            raise error  # the command may have run: it is never repeated

        def add(stream: str, data: bytes) -> None:
            self._show(lambda: self._gathering.add(host.name, stream, data, time.monotonic()))

        connection = connect(host, self._fleet.directory.key, window=share_window(len(self._hosts)))
        self._connections.append(connection)
        self._started.setdefault(host.name, None)
        try:
            return run_remote(connection, host_command(self._command), add)
        except FleetError as error:
            self._started[host.name] = error
            raise
        finally:
            connection.close()

    def _show(self, collect: Callable[[], list[CommandOutput]]) -> None:
        with self._lock:
            for output in collect():
                self._fleet.sink.emit(output)

    def _sever(self) -> None:
        for connection in list(self._connections):
            connection.sever()


@command("Hosts", WithProgram)
def exec_(
    ctx: typer.Context,
    command: list[str] | None = argument(None, "-- CMD", "Command to run."),
    worker: str = HOSTS,
    fleet: str = FLEET,
    output: Output = OUTPUT,
) -> None:
    """Run a command on all hosts at the same time.

    Hosts with equal output share one prefix. Exits with the largest exit code of a host. Ctrl-C ends the command
    on all hosts.

    Examples:
      fleet exec -- nvidia-smi
      fleet exec --worker 0,2 -- df -h /
    """
    words: tuple[str, ...] = ctx.meta.get(AFTER_DASHES, ())
    if command or not words:
        raise UsageError(
            f"unexpected argument {command[0]!r}" if command else "nothing to run",
            hint="the command goes after --",
            next_steps=[Step("exec", "--", *(command or ("hostname",)), *words)],
        )
    many = worker == ALL or "," in worker
    with session(resolve_fleet(fleet), output, prefix=many, raw=True, live=False) as run:
        existing = run.find_fleet()
        hosts = select_hosts(run.fleet, existing.record.hosts, worker)
        execution = _Execution(words, hosts, existing)
        try:
            outcomes = execution.run()
        except KeyboardInterrupt:
            raise CancelledError(
                f"interrupted; the command ends on {fold(host.name for host in hosts)}", next_steps=[Step("status")]
            ) from None
        finally:
            execution.finish()
        results = [
            HostResult(outcome.host.name, outcome.value, outcome.error.message if outcome.error else "")
            for outcome in outcomes
        ]
        run.emit(CommandResult(run.fleet, words, tuple(results)))
        raise_failures(outcomes, "run the command on all hosts")
    raise CommandEnded(max((outcome.value or 0 for outcome in outcomes), default=0))
