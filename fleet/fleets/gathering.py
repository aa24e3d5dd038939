"""Combine the output that the hosts of a fleet write for one command; without I/O."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.events import CommandOutput

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
        self._sizes = dict.fromkeys(hosts, 0)
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
            self._sizes[host] += len(data)
            self._since = now if self._since is None else self._since
        if self._streams:
            return self._lines(host)
        if self._sizes[host] > HELD_MAX or (self._since is not None and now - self._since > HELD_S):
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
