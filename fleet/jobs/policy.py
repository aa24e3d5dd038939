"""The policy of a job: restarts, spares, preemptions, hangs, replication of checkpoints, and growth."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from fleet.errors import UsageError
from fleet.remote.client import MOST_WORKERS
from fleet.steps import Again, Change
from provision import registry
from provision.names import instance_name
from provision.options import ProviderOptions
from provision.quantities import counted
from train.agent.protocol.records import Member, OnHang, Policy, PreemptionNotice, Replication, RestartPolicy
from train.defaults import SPOT_HOST_TIMEOUT_S

SHORTEST_LINK_TIMEOUT_S = 1.0
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def replication(directory: str, mib_s: float) -> Replication:
    """Return the settings for the replication of checkpoints.

    Args:
        directory: Directory to which the script writes them: relative to its working directory, absolute on the
            hosts, or a URL, which all hosts share, so that nothing is replicated; empty: a directory of the job.
        mib_s: Upper limit of the bandwidth out of a host, in MiB per second; 0: nothing is replicated.

    Raises:
        UsageError: the directory is outside the working directory, or the bandwidth is not a valid number.
    """
    if not 0 <= mib_s < float("inf"):
        raise UsageError(
            f"--checkpoint-bandwidth {mib_s:g} is not a bandwidth", hint="give MiB per second; 0 copies nothing"
        )
    if _URL.match(directory):
        return Replication(directory, 0.0)
    if ".." in PurePosixPath(directory).parts or "\0" in directory:
        raise UsageError(
            f"--checkpoint-dir {directory!r} must be inside the script's directory",
            hint="name a directory below it, or an absolute path on the hosts",
        )
    return Replication(directory, mib_s)


def preemption_notices(*options: ProviderOptions) -> list[PreemptionNotice]:
    """Return the servers that a host may poll for a notice of its preemption.

    Args:
        options: Options of the fleet; without them, those of all providers of this package.
    """
    return [PreemptionNotice(*notice) for notice in registry.preemption_notices(*map(type, options))]


def on_fleet(policy: Policy, *, spot: bool, preemptions: int | None, host_timeout_s: float | None) -> Policy:
    """Return `policy` with defaults for unset values that suit the hosts.

    Spot instances are preempted and replaced: each such loss is tolerated, and the job waits as long as a
    replacement may take.

    Args:
        policy: The other settings.
        spot: The provider can preempt the hosts at any time.
        preemptions: Number of losses of a host that do not count as failures; None: unset.
        host_timeout_s: Longest time until a lost host returns, in seconds; None: unset.
    """
    if preemptions is None:
        preemptions = -1 if spot else 0
    if host_timeout_s is None:
        host_timeout_s = SPOT_HOST_TIMEOUT_S if spot else policy.host_timeout_s
    return policy._replace(preemptions=preemptions, host_timeout_s=host_timeout_s)


def check_policy(policy: Policy, *, spares: int, hosts: int, link_timeout_s: float, others: int = 0) -> None:
    """Reject a policy that is invalid for a fleet.

    Args:
        policy: The settings given by the user.
        spares: Number of spare slots.
        hosts: Number of slots, including the spares.
        link_timeout_s: Longest time that a host can be silent, in seconds.
        others: Number of tasks that are not workers.

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
    if 0 < policy.max_workers < workers:
        yield (
            f"--max-workers {policy.max_workers} is less than the {workers} that the job begins with",
            {"--max-workers": str(workers)},
        )
    if policy.max_workers > MOST_WORKERS:
        yield f"--max-workers {policy.max_workers} is more than {MOST_WORKERS}", {"--max-workers": str(MOST_WORKERS)}


def _restarts(policy: Policy, spares: int) -> Iterator[tuple[str, Change]]:
    if policy.restart is RestartPolicy.NEVER and policy.restarts:
        yield f"--restart-policy never contradicts --restarts {policy.restarts}", {"--restart-policy": None}
    if policy.restart is RestartPolicy.EXIT_CODE and not policy.restarts:
        yield "--restart-policy exit-code restarts nothing without --restarts", {"--restarts": "3"}
    for count, option in ((spares, "--spares"), (policy.min_workers, "--min-workers")):
        if count and not (policy.restarts or policy.preemptions):
            yield f"{option} {count} needs --restarts: the job continues in a new attempt", {"--restarts": "3"}


def _hangs(policy: Policy) -> Iterator[tuple[str, Change]]:
    if policy.on_hang is OnHang.RESTART and not policy.hang_timeout_s:
        change: Change = (
            {"--hang-timeout": "10m"} if policy.restarts else {"--hang-timeout": "10m", "--restarts": "3"}
        )
        yield "--on-hang restart needs --hang-timeout: without it, hangs are not detected", change
    if policy.on_hang is OnHang.RESTART and not policy.restarts:
        yield "--on-hang restart needs --restarts", {"--restarts": "3"}


def check_growth(max_workers: int, options: ProviderOptions, replication: Replication) -> None:
    """Reject `--max-workers` if the fleet cannot grow, or if its hosts do not know the checkpoints of the job.

    Raises:
        UsageError: with the first reason.
    """
    if not max_workers:
        return
    if not options.resizable:
        raise UsageError(
            "--max-workers requires a fleet that can grow, and the nodes of an allocation are fixed",
            next_steps=[Again({"--max-workers": None})],
        )
    check_replicated("--max-workers", replication)


def check_replicated(option: str, replication: Replication) -> None:
    """Reject an option that needs the checkpoints on all hosts if these do not replicate them.

    Raises:
        UsageError: checkpoints are at a URL, or are not replicated.
    """
    if "://" in replication.directory:
        raise UsageError(
            f"{option} requires checkpoints that the hosts replicate, and --checkpoint-dir is a URL",
            hint="the script itself continues from a checkpoint at a URL",
            next_steps=[Again({option: None})],
        )
    if replication.mib_s <= 0:
        raise UsageError(
            f"{option} requires the replication of checkpoints, which --checkpoint-bandwidth 0 disables",
            next_steps=[Again({"--checkpoint-bandwidth": None})],
        )


def name_joinable(slots: int, workers: int, max_workers: int) -> list[str]:
    """Return the names of the slots that may join a job later.

    Args:
        slots: Number of slots that the job starts with.
        workers: Number of workers that it starts with.
        max_workers: Maximum number of workers; 0: none may join.
    """
    return [instance_name(slots + index) for index in range(max_workers - workers)]


def allowed_tasks(members: Sequence[Member], max_workers: int | None) -> set[str]:
    """Return all tasks on which the hosts of a job may report; empty if none is known."""
    tasks = {member.task for member in members if member.task}
    return tasks | {f"worker-{index}" for index in range(max_workers or 0)} if tasks else tasks
