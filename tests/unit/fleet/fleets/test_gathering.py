from __future__ import annotations

from fleet.cli.fleets.exec import HELD_MAX, Gathering
from fleet.events import CommandOutput

HOSTS = ("worker-0", "worker-1", "worker-2")


def test_equal_output_is_shown_once() -> None:
    gathering = Gathering(HOSTS)
    for number, host in enumerate(HOSTS):
        assert gathering.add(host, "stdout", b"Linux\n", number) == []
        assert gathering.add(host, "stderr", b"warn" if host == "worker-1" else b"", number) == []
        assert gathering.add(host, "stdout", b"6.1\n", number) == []
    assert gathering.finish() == [
        CommandOutput(("worker-0", "worker-2"), "stdout", b"Linux\n6.1\n"),
        CommandOutput(("worker-1",), "stderr", b"warn"),
        CommandOutput(("worker-1",), "stdout", b"Linux\n6.1\n"),
    ]
    assert gathering.finish() == []


def test_much_output_is_passed_on_line_by_line() -> None:
    gathering = Gathering(HOSTS)
    assert gathering.add("worker-1", "stdout", b"small\nrest", 0) == []
    assert gathering.add("worker-0", "stdout", b"x" * HELD_MAX, 0) == []
    assert gathering.add("worker-0", "stdout", b"\nnext", 0) == [
        CommandOutput(("worker-0",), "stdout", b"x" * HELD_MAX + b"\nnext"),
        CommandOutput(("worker-1",), "stdout", b"small\n"),
    ]
    assert gathering.add("worker-0", "stdout", b" line\nand", 0) == [
        CommandOutput(("worker-0",), "stdout", b" line\n")
    ]
    assert gathering.finish() == [
        CommandOutput(("worker-0",), "stdout", b"and"),
        CommandOutput(("worker-1",), "stdout", b"rest"),
    ]
