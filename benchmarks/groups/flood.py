"""Lines per second of a task that prints as fast as it can."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence

from benchmarks.harness.model import Goal, Sample
from benchmarks.harness.scripts import EMIT, write_script
from benchmarks.harness.session import Session

TITLE = "A task that prints as fast as it can"
_PEER = "cat into a file"


def measure(session: Session) -> None:
    """Compare the rate that a task reaches under the agent with that of the same program that writes to `cat`."""
    hosts, script = session.local(session.pick(2, 1, 1)), write_script(session.directory(), EMIT, "emit.py")
    emit = f"{sys.executable} {script}"

    def rate(command: Callable[[], Sample]) -> Sample:
        sample, rates = command(), [float(mark.read_text()) for mark in hosts.marks.iterdir()]
        return {**sample, "rate": statistics.mean(rates) / 1e3}

    def train(arguments: Sequence[str]) -> Sample:
        hosts.run_fleet("train", "--detach", str(script), "--", *arguments)
        return hosts.run_fleet("logs", "-f", "-n", "0")

    # 240 MB of each: the task prints for about a second
    kinds = (("text", "lines of 120 bytes", 2_000_000), ("steps", "lines with a step and a loss", 6_000_000))
    for kind, title, count in kinds:
        lines = session.pick(2_000, count, 2 * count)
        words = [str(lines), kind, str(hosts.marks)]
        piped = ["/bin/sh", "-c", f"{emit} {' '.join(words)} | cat > {session.root}/lines"]

        def fleet(arguments: tuple[str, ...] = tuple(words)) -> Sample:
            return rate(lambda: train(arguments))

        def cat(arguments: tuple[str, ...] = tuple(piped)) -> Sample:
            return rate(lambda: hosts.run(arguments))

        session.measure(
            title,
            {"fleet train": fleet, _PEER: cat},
            [Goal("rate", "fleet train", _PEER, 0.5, at_least=True)],
            metric="rate",
            runs=session.pick(1, 5, 9),
            before=hosts.clear_marks,
        )
