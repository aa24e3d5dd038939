"""What the user wants to become of a job when something goes wrong: refused where it makes no sense."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from fleet.errors import UsageError
from fleet.steps import Again, Change
from provision.quantities import counted
from train.agent.protocol.records import OnHang, Policy, Replication, RestartPolicy

SHORTEST_LINK_TIMEOUT_S = 1.0
SPOT_HOST_TIMEOUT_S = 1800.0
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def replication(directory: str, mib_s: float) -> Replication:
    """How checkpoints are kept.

    Args:
        directory: Where the script writes them: relative to its working directory, absolute on the hosts, or a URL,
            which all hosts share and nothing is replicated of; empty: the job's own.
        mib_s: At most so many MiB a second leave a host; 0: nothing is replicated.

    Raises:
        UsageError: the directory leads out of the working directory, or the bandwidth is none.
    """
    if not 0 <= mib_s < float("inf"):
        raise UsageError(
            f"--checkpoint-bandwidth {mib_s:g} is not a bandwidth", hint="give MiB per second; 0 copies nothing"
        )
    if _URL.match(directory):
        return Replication(directory, 0.0)
    if ".." in PurePosixPath(directory).parts or "\0" in directory:
        raise UsageError(
            f"--checkpoint-dir {directory!r} leads out of the script's directory",
            hint="name a directory below it, or an absolute path on the hosts",
        )
    return Replication(directory, mib_s)


def on_fleet(policy: Policy, *, spot: bool, preemptions: int | None, host_timeout_s: float | None) -> Policy:
    """`policy` with what was not said as it suits the hosts.

    Spot instances are taken back and come again: all such losses are survived, and waited out for as long as another
    instance may take.

    Args:
        policy: All else that was said.
        spot: The provider may take the hosts back at any time.
        preemptions: As many losses of a host are no failures; None: not said.
        host_timeout_s: How long a lost host may take to come back, in seconds; None: not said.
    """
    if preemptions is None:
        preemptions = -1 if spot else 0
    if host_timeout_s is None:
        host_timeout_s = SPOT_HOST_TIMEOUT_S if spot else policy.host_timeout_s
    return policy._replace(preemptions=preemptions, host_timeout_s=host_timeout_s)


def check_policy(policy: Policy, *, spares: int, hosts: int, link_timeout_s: float, others: int = 0) -> None:
    """Refuse a policy that makes no sense on a fleet.

    Args:
        policy: What the user typed.
        spares: Places that hold themselves ready.
        hosts: Places for tasks, these included.
        link_timeout_s: How long a host may be silent, in seconds.
        others: Tasks that are no workers.

    Raises:
        UsageError: with the first reason.
    """
    for message, change in (*_sizes(policy, spares, hosts, others), *_restarts(policy, spares), *_hangs(policy)):
        raise UsageError(message, next_steps=[Again(change)])
    if link_timeout_s < SHORTEST_LINK_TIMEOUT_S:
        raise UsageError(
            f"--link-timeout {link_timeout_s:g} is too short for any network",
            next_steps=[Again({"--link-timeout": f"{SHORTEST_LINK_TIMEOUT_S:g}"})],
        )


def _sizes(policy: Policy, spares: int, hosts: int, others: int) -> Iterator[tuple[str, Change]]:
    workers = hosts - spares - others
    if hosts - spares < 1:
        fewer = str(hosts - 1) if hosts > 1 else None
        yield f"--spares {spares} of {counted(hosts, 'host')} leaves no worker", {"--spares": fewer}
    if policy.min_workers > workers:
        yield (
            f"--min-workers {policy.min_workers} is more than the {workers} that the job begins with",
            {"--min-workers": str(workers) if workers > 0 else None},
        )


def _restarts(policy: Policy, spares: int) -> Iterator[tuple[str, Change]]:
    if policy.restart is RestartPolicy.NEVER and policy.restarts:
        yield f"--restart-policy never contradicts --restarts {policy.restarts}", {"--restart-policy": None}
    if policy.restart is RestartPolicy.EXIT_CODE and not policy.restarts:
        yield "--restart-policy exit-code restarts nothing without --restarts", {"--restarts": "3"}
    for count, option in ((spares, "--spares"), (policy.min_workers, "--min-workers")):
        if count and not (policy.restarts or policy.preemptions):
            yield f"{option} {count} needs --restarts: the job goes on in a new attempt", {"--restarts": "3"}


def _hangs(policy: Policy) -> Iterator[tuple[str, Change]]:
    if policy.on_hang is OnHang.RESTART and not policy.hang_timeout_s:
        change: Change = (
            {"--hang-timeout": "10m"} if policy.restarts else {"--hang-timeout": "10m", "--restarts": "3"}
        )
        yield "--on-hang restart needs --hang-timeout: without it, hangs are not detected", change
    if policy.on_hang is OnHang.RESTART and not policy.restarts:
        yield "--on-hang restart needs --restarts", {"--restarts": "3"}
