"""A command on all hosts, with new connections."""

from __future__ import annotations

from functools import partial

from benchmarks.harness.delay import delayed
from benchmarks.harness.machines import Machines
from benchmarks.harness.model import Goal
from benchmarks.harness.session import Session

TITLE = "A command on all hosts"
_GOALS = {
    64: (
        Goal("wall", "fleet exec", "pdsh", 0.9),
        Goal("client_cpu", "fleet exec", "pdsh", 0.5),
        Goal("wall", "fleet exec", "clush", 0.55),
    ),
    256: (Goal("wall", "fleet exec", "pdsh", 0.7), Goal("client_cpu", "fleet exec", "pdsh", 0.35)),
}
_ROUND_TRIP_S = 0.05


def measure(session: Session) -> None:
    """Run `true` on hosts without connections, and on a distant host."""
    for workers in session.pick((2,), (8, 64, 256), (8, 64, 256)):
        session.attempt(f"true on {workers} hosts", partial(_on_hosts, session, workers))
    session.attempt("true on a host at 50 ms", partial(_distant, session))


def _on_hosts(session: Session, workers: int) -> None:
    hosts = session.local(workers)
    few = workers > 64
    session.measure(
        f"`true` on {workers} hosts",
        {
            "fleet exec": lambda: hosts.run_fleet("exec", "--", "true"),
            "pdsh": lambda: hosts.run(hosts.pdsh("true")),
            "clush": lambda: hosts.run(hosts.clush("true")),
        },
        _GOALS.get(workers, (Goal("wall", "fleet exec", "pdsh"), Goal("client_cpu", "fleet exec", "pdsh"))),
        runs=session.pick(1, 3 if few else 7, 5 if few else 15),
        warmups=0 if few else 1,
    )
    session.release(hosts)


def _distant(session: Session) -> None:
    machines = Machines(session, ["127.77.0.1"])
    [machine] = machines.servers
    port = session.enter(delayed(machine.address, machine.port, _ROUND_TRIP_S / 2))
    hosts = machines.fleet("bench-far", ports=[port])
    session.measure(
        "`true` on a host at a round-trip time of 50 ms",
        {
            "fleet exec": lambda: hosts.run_fleet("exec", "--", "true"),
            "ssh": lambda: hosts.run(hosts.ssh(0, "true")),
        },
        [Goal("wall", "fleet exec", "ssh", 0.75)],
        runs=session.pick(1, 9, 21),
    )
