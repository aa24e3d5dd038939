"""Start of the program: commands that need no host."""

from __future__ import annotations

from benchmarks.harness.command import environment, run
from benchmarks.harness.hosts import FLEET
from benchmarks.harness.model import Goal, Sample
from benchmarks.harness.peers import find
from benchmarks.harness.session import Session

TITLE = "Start of the program"
_PEER = "ansible --version"


def measure(session: Session) -> None:
    """Compare commands of fleet without a fleet to `ansible --version`."""
    env = environment(FLEET_STATE_DIR=str(session.directory()))

    def command(*arguments: str, code: int = 0) -> Sample:
        return run(arguments, env=env, codes=(code,), timeout_s=30)

    session.measure(
        "commands that need no host",
        {
            "fleet --help": lambda: command(FLEET, "--help"),
            "fleet status": lambda: command(FLEET, "status", code=102),
            _PEER: lambda: command(find("ansible"), "--version"),
        },
        [Goal("wall", "fleet --help", _PEER, 0.2), Goal("wall", "fleet status", _PEER, 0.3)],
        runs=session.pick(1, 15, 31),
    )
