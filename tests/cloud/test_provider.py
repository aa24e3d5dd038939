"""Each rule of the contract in provision/provider.py, for each provider."""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from provision.keys import generate_ed25519
from provision.model import FleetSpec, Host, Instance, InstanceState
from provision.names import instance_name
from provision.provider import ErrorKind, ProviderError
from tests.cloud.conftest import Case, Ssh, arguments
from tests.program import has_ended, wait_for

pytestmark = pytest.mark.wire
of_own_hosts = pytest.mark.usefixtures("own_hosts")

Spec = Callable[..., FleetSpec]
_NAPS = itertools.count(1)


def quiet(name: str, step: str) -> None:
    pass


def create(case: Case, spec: FleetSpec) -> None:
    case.provider.create(spec, [instance_name(index) for index in range(spec.workers)], quiet)


def host_of(case: Case, spec: Spec, instance: Instance) -> Host:
    [host] = case.provider.hosts(spec(name=instance.fleet), [instance])
    return host


def states(case: Case, fleet: str | None = "demo") -> dict[str, str]:
    return {instance.name: instance.state.value for instance in case.provider.list(fleet)}


def ids(case: Case, fleet: str = "demo") -> dict[str, str]:
    return {instance.name: instance.id for instance in case.provider.list(fleet)}


# --- check ------------------------------------------------------------------------------------------------------


def test_check_refuses_an_impossible_spec_and_changes_nothing(case: Case) -> None:
    with pytest.raises(ProviderError) as refusal:
        case.provider.check(case.impossible)
    assert refusal.value.kind is ErrorKind.USAGE
    assert case.traces() == []


# --- create -----------------------------------------------------------------------------------------------------


def test_created_instances_are_listed_extended_and_all_are_deleted(case: Case, spec: Spec) -> None:
    before = time.time()
    steps: list[tuple[str, str]] = []
    names = ["worker-0", "worker-1", "worker-2"]
    case.provider.create(spec(workers=3), ["worker-1"], quiet)
    first = ids(case)
    case.provider.create(spec(workers=3), names, lambda name, step: steps.append((name, step)))
    assert {("worker-0", "ready"), ("worker-2", "ready")} <= set(steps)
    assert ids(case)["worker-1"] == first["worker-1"]  # only missing instances are created
    instances = case.provider.list("demo")
    assert [instance.name for instance in instances] == names
    assert {instance.state for instance in instances} == {InstanceState.RUNNING}
    assert {instance.fleet for instance in instances} == {"demo"}
    assert len({instance.id for instance in instances}) == 3
    assert all(before <= instance.created_at <= time.time() for instance in instances)
    create(case, spec(workers=3))
    assert case.provider.list("demo") == instances  # a repeated create changes nothing
    assert case.provider.termination_reasons("demo", ["worker-0", "worker-3"]) == {}
    assert case.provider.termination_reasons("other", ["worker-0"]) == {}
    check_extend(case, instances)

    assert case.traces()
    case.provider.delete(instances, quiet)
    assert case.provider.list() == []
    assert case.traces() == []
    case.provider.delete(instances, quiet)  # a deleted instance can be deleted
    assert case.provider.list() == []


def check_extend(case: Case, instances: Sequence[Instance]) -> None:
    """Check that `extend` moves the end of the lifetime, or reports that there is none."""
    assert all(bool(instance.delete_at) == case.has_deadline for instance in instances)
    if case.has_deadline:
        case.provider.extend(instances, 5 * 3600.0, quiet)
        later = case.provider.list("demo")
        assert [instance.id for instance in later] == [instance.id for instance in instances]
        ends = [instance.stop_at or instance.delete_at for instance in later]
        assert all(abs(end - time.time() - 5 * 3600) < 300 for end in ends)
    else:
        with pytest.raises(ProviderError, match="no deletion time") as refusal:
            case.provider.extend(instances, 3600.0, quiet)
        assert refusal.value.kind is ErrorKind.USAGE
        assert case.provider.list("demo") == instances


@of_own_hosts
def test_a_dead_instance_is_listed_and_only_it_is_repaired_by_a_repeat(case: Case, spec: Spec, ssh: Ssh) -> None:
    create(case, spec(workers=3))
    first = case.provider.list("demo")
    host = host_of(case, spec, first[1])
    assert ssh.run(host, f"mkdir -p '{host.root}' && echo precious > '{host.root}/log'").returncode == 0
    case.kill(first[1])
    assert states(case) == {"worker-0": "running", "worker-1": "stopped", "worker-2": "running"}
    create(case, spec(workers=3))
    repaired = case.provider.list("demo")
    assert states(case) == {"worker-0": "running", "worker-1": "running", "worker-2": "running"}
    assert (repaired[0], repaired[2]) == (first[0], first[2])
    assert repaired[1].id == first[1].id
    again = host_of(case, spec, repaired[1])
    assert again.host_key == host.host_key
    assert ssh.run(again, f"cat '{again.root}/log'").stdout == "precious\n"


# --- hosts ------------------------------------------------------------------------------------------------------


def test_ssh_reaches_each_host_with_the_reported_host_key_alone(
    case: Case, spec: Spec, ssh: Ssh, tmp_path: Path
) -> None:
    fleet_spec = spec(python="/opt/tf/bin/python")
    assert not case.provider.open_ssh(fleet_spec).changed  # before a fleet exists
    create(case, fleet_spec)
    assert not case.provider.open_ssh(fleet_spec, make=True).changed
    access = case.provider.open_ssh(fleet_spec)
    assert (access.changed, access.admits_caller) == (False, True)
    hosts = case.provider.hosts(fleet_spec, case.provider.list("demo"))
    for host in hosts:
        assert host.python == "/opt/tf/bin/python"
        ran = ssh.run(host, f"mkdir -p '{host.root}' && cd '{host.root}' && echo it is $(whoami)")
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"it is {host.user}\n", "")
    assert len({(host.address, host.port) for host in hosts}) == 2
    assert len({host.host_key for host in hosts}) == 2
    assert len({host.key_alias for host in hosts}) == 2
    assert len({(host.address, host.root) for host in hosts}) == 2
    refused = ssh.run(dataclasses.replace(hosts[0], host_key=hosts[1].host_key), "true")
    assert refused.returncode == 255
    assert "Host key verification failed" in refused.stderr
    if not case.options.existing:  # its hosts' users decide who may log in
        stranger = Ssh(tmp_path, generate_ed25519("a stranger's").private).run(hosts[0], "true")
        assert stranger.returncode == 255
        assert "Permission denied" in stranger.stderr


# --- delete -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 3])
def test_a_repeated_delete_completes_an_interrupted_one(case: Case, spec: Spec, nth: int) -> None:
    seen: list[str] = []

    def interrupt(name: str, step: str) -> None:
        seen.append(name)
        if len(seen) == nth:
            raise KeyboardInterrupt

    create(case, spec())
    with pytest.raises(KeyboardInterrupt):
        case.provider.delete(case.provider.list("demo"), interrupt)
    case.provider.delete(case.provider.list("demo"), quiet)
    assert case.traces() == []


@of_own_hosts
def test_delete_of_an_earlier_instance_keeps_its_successor_of_the_same_name(case: Case, spec: Spec) -> None:
    create(case, spec(workers=1))
    earlier = case.provider.list("demo")
    case.provider.delete(earlier, quiet)
    create(case, spec(workers=1))
    now = case.provider.list("demo")
    case.provider.delete(earlier, quiet)
    assert case.provider.list("demo") == now


def start_sleeper(case: Case, spec: Spec, ssh: Ssh, before: str = "") -> psutil.Process:
    """Start a daemonized process in its own session on worker-0, as `nohup` and agents do."""
    host = host_of(case, spec, case.provider.list("demo")[0])
    nap = f"600.{os.getpid()}{next(_NAPS)}"
    ran = ssh.run(host, f"setsid sh -c '{before} sleep {nap} </dev/null >/dev/null 2>&1 &'")
    assert ran.returncode == 0, ran.stderr
    # A host can have its own PID namespace: the process is identified by its command line.
    sleeper = wait_for(
        "the sleeper",
        lambda: next((process for process in psutil.process_iter() if arguments(process) == f"sleep {nap}"), None),
    )
    assert os.getsid(sleeper.pid) not in (0, sleeper.pid, os.getsid(0))
    return sleeper


@contextmanager
def idle_connection(case: Case, spec: Spec, ssh: Ssh) -> Iterator[subprocess.Popen[bytes]]:
    """Open a connection to worker-0 that runs no command."""
    idle = ["ssh", "-N", "-o", "PermitLocalCommand=yes", "-o", "LocalCommand=echo connected"]
    host = host_of(case, spec, case.provider.list("demo")[0])
    command = [*idle, *ssh.command(host)[1:]]
    ssh.wait(host)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as client:
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == b"connected\n"
            yield client
        finally:
            client.kill()


@of_own_hosts
def test_delete_ends_all_processes_and_connections_and_removes_all_files(case: Case, spec: Spec, ssh: Ssh) -> None:
    create(case, spec())
    host = host_of(case, spec, case.provider.list("demo")[0])
    writer = 'trap "" TERM; i=0; while :; do i=$((i+1)); mkdir -p a/$i && echo x > a/$i/f; sleep 0.01; done'
    sleepers = [start_sleeper(case, spec, ssh, before) for before in ("", 'trap "" TERM;')]
    with idle_connection(case, spec, ssh) as client:
        case.provider.delete(case.provider.list("demo")[1:], quiet)
        assert not any(has_ended(sleeper) for sleeper in sleepers)
        assert client.poll() is None
        ran = ssh.run(
            host,
            f"mkdir -p '{host.root}/sealed/in' && cd '{host.root}' && touch sealed/in/file && chmod -R a-w sealed"
            f" && (setsid sh -c '{writer}' </dev/null >/dev/null 2>&1 &)",
        )
        assert ran.returncode == 0, ran.stderr
        case.provider.delete(case.provider.list("demo"), quiet)
        assert client.wait(timeout=90) == 255
    assert all(has_ended(sleeper) for sleeper in sleepers)
    assert case.traces() == []


# --- several fleets ---------------------------------------------------------------------------------------------


def test_fleets_are_listed_and_deleted_without_effect_on_others(case: Case, spec: Spec, ssh: Ssh) -> None:
    create(case, spec(workers=2, name="b"))
    create(case, spec(workers=1, name="b-worker-0"))
    create(case, spec(workers=1, name="a"))
    assert states(case, "b") == {"worker-0": "running", "worker-1": "running"}
    assert states(case, "b-worker-0") == {"worker-0": "running"}
    instances = case.provider.list()
    assert [(instance.fleet, instance.name) for instance in instances] == [
        ("a", "worker-0"),
        ("b", "worker-0"),
        ("b", "worker-1"),
        ("b-worker-0", "worker-0"),
    ]
    first, second, third, fourth = instances
    case.provider.delete([second], quiet)
    assert case.provider.list() == [first, third, fourth]
    assert ssh.run(host_of(case, spec, third), "true").returncode == 0

    create(case, spec(name="b"))
    if not case.options.existing:
        case.kill(case.provider.list("b")[0])
    steps: list[tuple[str, str]] = []
    assert case.provider.delete_fleet("b", lambda name, step: steps.append((name, step))) == []
    assert case.provider.list() == [first, fourth]
    assert {("worker-0", "deleted"), ("worker-1", "deleted")} <= set(steps)
    for fleet in ("b", "a", "b-worker-0"):
        assert case.provider.delete_fleet(fleet, quiet) == []
    assert case.traces() == []


# --- doctor ------------------------------------------------------------------------------------------------------


def test_doctor_reports_no_failure_if_fleets_can_be_created_and_changes_nothing(case: Case) -> None:
    findings = case.provider.doctor()
    assert [finding for finding in findings if not finding.ok] == []
    assert len({finding.subject for finding in findings}) == len(findings) > 0
    assert all(finding.message for finding in findings)
    assert case.traces() == []
