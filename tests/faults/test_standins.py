"""Test faults on separate hosts with stand-in tasks, by kind of fault, time, and policy."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import psutil
import pytest

from tests.faults.hosts import ClientReport, FaultFleet, Play, fault_fleet
from tests.faults.standin import IMPORT, SCRIPT, make_import
from tests.interpreter import separate_interpreter
from tests.program import PYTHON, wait_for

SIDE_BY_SIDE = 4
DEADLINE_S = 200.0
LINK = ("--link-timeout", "3", "--backoff", "0.1", "--host-timeout", "2")
NONE: tuple[str, ...] = ()
RESTART = ("--restarts", "2")
FEWER = ("--restarts", "2", "--min-workers", "2")
SPARE = ("--restarts", "2", "--spares", "1")


def holds(step: int) -> Callable[[Path], bool]:
    """Return a check whether a file of a snapshot is a checkpoint of `step` or later."""

    def wanted(path: Path) -> bool:
        text = path.read_text()
        return text.endswith("whole") and int(text.split()[0]) >= step

    return wanted


@dataclass(frozen=True)
class Case:
    """A fault, and the expected outcome of the job.

    Attributes:
        fault: Called when the first attempt has saved `at` steps.
        policy: Options of `fleet train`.
        code: Exit code.
        verdict: Kind and task of the last attempt's verdict, if it fails.
        ended: Attempts that fail before the last one, each with kind and task of its verdict.
        at: Step; 0: `fault` itself waits for its moment.
        steps: Number of steps of the first attempt.
        words: Further arguments of the script.
        cut: Hosts whose last output cannot be received.
        roles: Number of tasks of the last attempt.
        behind: Whether the newest checkpoint may be lost with its host before it is copied.
    """

    fault: Callable[[Play], None]
    policy: tuple[str, ...] = NONE
    code: int = 0
    verdict: tuple[str, str] = ("", "")
    ended: tuple[tuple[int, str, str], ...] = ()
    at: int = 10
    steps: int = 1000
    words: tuple[str, ...] = ()
    cut: tuple[int, ...] = ()
    roles: int = 3
    behind: bool = False


def kill(number: int, kind: str, number_of_signal: int = signal.SIGKILL) -> Callable[[Play], None]:
    return lambda play: play.send(number, kind, number_of_signal)


def kill_agent(number: int) -> Callable[[Play], None]:
    def fault(play: Play) -> None:
        watchdog, supervisor = play.process(number, "watchdog"), play.process(number, "supervisor")
        watchdog.suspend()  # otherwise it would start another supervisor
        supervisor.kill()
        watchdog.kill()

    return fault


def freeze_host(number: int) -> Callable[[Play], None]:
    """Stop all processes of a host, and continue them when the other hosts have given it up."""

    def fault(play: Play) -> None:
        stopped = play.fleet.hosts[number].processes().values()
        for process in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        play.wait_for_record(0, "task_state", 2, phase="running")
        for process in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):  # a process that was resumed before may have ended it
                process.resume()

    return fault


def each(*faults: Callable[[Play], None]) -> Callable[[Play], None]:
    """Cause several faults, in order."""

    def fault(play: Play) -> None:
        for cause in faults:
            cause(play)

    return fault


def when(number: int, text: str, attempt: int = 1) -> Callable[[Play], None]:
    return lambda play: play.wait_for_log(number, text, attempt)


def at_the_gate(then: Callable[[Play], None]) -> Callable[[Play], None]:
    """Cause a fault before any user code runs, while two hosts cannot reach each other."""

    def fault(play: Play) -> None:
        wait_for("the start of the job", lambda: '"job_started"' in play.out.read_text(errors="replace"))
        for number in range(3):
            play.wait_for_record(number, "task_state", phase="waiting")
        then(play)

    return fault


def after_copies(then: Callable[[Play], None]) -> Callable[[Play], None]:
    """Cause a fault when other hosts have a checkpoint, too."""

    def fault(play: Play) -> None:
        play.saved_everywhere(holds(10), 1, 2)
        then(play)

    return fault


def between_attempts(then: Callable[[Play], None]) -> Callable[[Play], None]:
    def fault(play: Play) -> None:
        play.send(1, "task")
        play.wait_for_record(0, "attempt_ended")
        then(play)

    return fault


def kill_while_saving(play: Play) -> None:
    play.saved_everywhere(holds(10), 0, 1, 2)
    play.wait_for_log(0, "say saving 15")
    play.send(0, "task")


def stop_and_go(play: Play) -> None:
    task = play.process(1, "task")
    task.suspend()
    wait_for("the report of a hang", lambda: "no progress for" in play.out.read_text(errors="replace"))
    wait_for("the state of the stopped task", lambda: '"state": "T"' in play.out.read_text(errors="replace"))
    task.resume()


def short_loss(play: Play) -> None:
    play.fleet.isolate(2)
    time.sleep(1.0)  # far less than the link timeout of this case, however slow this computer is
    play.fleet.heal()


def lost_and_back(number: int) -> Callable[[Play], None]:
    """Cut a host off from the others until they continue without it."""

    def fault(play: Play) -> None:
        play.fleet.isolate(number)
        play.wait_for_record(1, "task_state", 2, phase="running")
        play.fleet.heal()

    return fault


def broken_pair(play: Play) -> None:
    play.fleet.cut(1, 2)
    play.wait_for_record(0, "attempt_ended")
    play.fleet.heal()


def slow_and_lossy(play: Play) -> None:
    for number in range(3):
        play.fleet.choke(number)
    play.wait_for_log(0, "say step 40")
    play.fleet.heal()


def client_killed(play: Play) -> None:
    play.client.kill()
    play.client.wait()
    play.client, play.out, play.err = play.fleet.start("logs", "-f", "-o", "json")


def laptop_down(play: Play) -> None:
    play.fleet.unplug(play.fleet.laptop)
    time.sleep(2.0)
    play.fleet.heal()


def nothing(play: Play) -> None:
    del play


CASES: dict[str, Case] = {
    # --- tasks
    "task killed, restart": Case(kill(1, "task"), RESTART, ended=((1, "killed", "worker-1"),)),
    "chief killed while it saves in place": Case(
        kill_while_saving, RESTART, ended=((1, "killed", "worker-0"),), at=0, words=("in-place",)
    ),
    "task killed at the gate": Case(at_the_gate(kill(0, "task")), RESTART, 14, at=0),
    "supervisor killed at the gate": Case(at_the_gate(kill(1, "supervisor")), RESTART, 14, at=0),
    "host gone at the gate": Case(at_the_gate(lambda play: play.fleet.kill_host(1)), NONE, 14, at=0, cut=(1,)),
    "task stopped, hang reported": Case(stop_and_go, ("--hang-timeout", "4"), steps=60),
    "task stopped, hang ends it": Case(
        kill(1, "task", signal.SIGSTOP),
        (*RESTART, "--hang-timeout", "4", "--on-hang", "restart"),
        ended=((1, "hang", ""),),
    ),
    "exception in each attempt": Case(
        nothing,
        ("--restarts", "1"),
        100,
        ("script-exception", "worker-1"),
        ended=((1, "script-exception", "worker-1"),),
        at=5,
        words=("raise",),
    ),
    # --- agents
    "supervisor killed, restart": Case(kill(1, "supervisor"), RESTART, ended=((1, "killed", "worker-1"),)),
    "leader killed, restart": Case(
        after_copies(kill(0, "supervisor")), RESTART, ended=((1, "killed", "worker-0"),), behind=True
    ),
    "supervisor killed between attempts": Case(
        between_attempts(kill(2, "supervisor")), (*RESTART, "--backoff", "2"), ended=((1, "killed", "worker-1"),)
    ),
    "supervisor stopped, restart": Case(
        # Replaced after half of the link timeout, and 1 s at most: before the others give it up.
        kill(1, "supervisor", signal.SIGSTOP),
        (*RESTART, "--link-timeout", "6"),
        ended=((1, "killed", "worker-1"),),
    ),
    "agent killed, fewer": Case(
        kill_agent(2), FEWER, ended=((1, "peer-unreachable", "worker-2"),), roles=2, cut=(2,)
    ),
    "leader's agent killed, spare": Case(
        after_copies(kill_agent(0)),
        SPARE,
        ended=((1, "peer-unreachable", "worker-0"),),
        roles=2,
        cut=(0,),
        behind=True,
    ),
    "replicator killed, then a task": Case(
        each(kill(2, "replicator"), when(0, "say saved 20"), kill(1, "task")),
        RESTART,
        ended=((1, "killed", "worker-1"),),
    ),
    "replicator killed between attempts": Case(
        between_attempts(kill(1, "replicator")), (*RESTART, "--backoff", "1"), ended=((1, "killed", "worker-1"),)
    ),
    # --- hosts
    "host gone": Case(lambda play: play.fleet.kill_host(2), NONE, 100, ("peer-unreachable", "worker-2"), cut=(2,)),
    "host gone, fewer": Case(
        lambda play: play.fleet.kill_host(2), FEWER, ended=((1, "peer-unreachable", "worker-2"),), roles=2, cut=(2,)
    ),
    "chief's host gone, spare": Case(
        after_copies(lambda play: play.fleet.kill_host(0)),
        SPARE,
        ended=((1, "peer-unreachable", "worker-0"),),
        roles=2,
        cut=(0,),
        behind=True,
    ),
    "host gone between attempts, fewer": Case(
        between_attempts(lambda play: play.fleet.kill_host(2)),
        (*FEWER, "--backoff", "1"),
        ended=((1, "killed", "worker-1"), (2, "peer-unreachable", "worker-2")),
        roles=2,
        cut=(2,),
    ),
    "host stopped and back, fewer": Case(
        freeze_host(2),
        FEWER,
        ended=((1, "peer-unreachable", "worker-2"),),
        roles=2,
        cut=(2,),
        words=("long",),
        steps=80,
    ),
    # --- the network
    "host cut off and back, fewer": Case(
        lost_and_back(2), FEWER, ended=((1, "peer-unreachable", "worker-2"),), roles=2, words=("long",), steps=80
    ),
    "leader cut off and back, fewer": Case(
        after_copies(lost_and_back(0)),
        FEWER,
        ended=((1, "peer-unreachable", "worker-0|worker-1|worker-2"),),  # either side takes the other for lost
        roles=2,
        words=("long",),
        steps=80,
        behind=True,
    ),
    "host cut off for a moment": Case(short_loss, (*RESTART, "--link-timeout", "30"), steps=80),
    "host unreachable": Case(lambda play: play.fleet.refuse(0, 2), NONE, 100, ("peer-unreachable", "worker-2")),
    "host heard by no other, fewer": Case(
        each(lambda play: play.fleet.cut_one_way(2, 0), lambda play: play.fleet.cut_one_way(2, 1)),
        FEWER,
        ended=((1, "peer-unreachable", "worker-2"),),
        roles=2,
    ),
    "pair cut off in silence": Case(
        broken_pair,
        (*RESTART, "--hang-timeout", "4", "--on-hang", "restart", "--backoff", "1"),
        ended=((1, "hang", ""),),
    ),
    "packets wait and are lost": Case(slow_and_lossy, RESTART, steps=60),
    "the client killed, then a task": Case(
        each(client_killed, kill(1, "task")), RESTART, ended=((1, "killed", "worker-1"),)
    ),
    "the client's network is down": Case(laptop_down, RESTART, steps=80),
}


def play(case: Case, fleet: FaultFleet, *, gate: bool, warm: bool) -> None:
    if gate:
        fleet.cut(1, 2)
    script, options = (IMPORT + SCRIPT, ("--warm",)) if warm else (SCRIPT, NONE)
    job = fleet.train(script, *LINK, *case.policy, *options, arguments=[str(case.steps), *case.words])
    if case.at:
        job.wait_for_log(0, f"say saved {case.at}")
    case.fault(job)
    report = job.finish(case.code, DEADLINE_S)
    shown = json.dumps(report.of("job_diagnosed"), indent=1)
    assert report.verdict == case.verdict, shown
    assert [verdict[:2] for verdict in report.verdicts] == [ended[:2] for ended in case.ended], shown
    for actual, wanted in zip(report.verdicts, case.ended, strict=True):
        assert actual[2] in wanted[2].split("|"), shown
    job.nothing_is_left()
    job.no_byte_is_lost(report, cut=case.cut)
    if not gate:
        continues_at_checkpoint(job, report, case)
    starts = [event["cold"] for event in report.of("task_state") if event["phase"] == "running"]
    assert all((cold is None) != warm for cold in starts), starts
    assert "" in starts or not warm or not case.ended or gate, starts


def continues_at_checkpoint(job: Play, report: ClientReport, case: Case) -> None:
    """Check that every attempt begins on all hosts at the newest complete checkpoint of the attempt before."""
    attempts = len(case.ended) + 1
    names = [host.name for host in job.fleet.hosts]
    saved = 0
    for attempt in range(1, attempts + 1):
        begins = [int(step) for name in names for step in report.values(name, attempt, "begin")]
        if not begins:  # a host was lost before the start
            assert attempt < attempts
            continue
        assert attempt < attempts or len(begins) == case.roles
        assert set(begins) == {begins[0]}, begins
        if case.behind:
            assert 10 <= begins[0] <= saved or attempt == 1
        else:
            assert begins[0] in (saved, saved + 5 if attempt > 1 else 0), (begins, saved)
        kept = [int(step) for name in names for step in report.values(name, attempt, "saved")]
        saved = max([*kept, begins[0]])


SAMPLE = (
    "chief killed while it saves in place",
    "supervisor killed at the gate",
    "leader killed, restart",
    "replicator killed, then a task",
    "chief's host gone, spare",
    "leader cut off and back, fewer",
    "pair cut off in silence",
)
"""The cases of the test command, one for each mechanism; `./scripts/soak standins` plays all."""


WARM_SAMPLE = ("chief killed while it saves in place", "supervisor killed at the gate", "leader killed, restart")


def play_cases(names: Sequence[str], directory: Path, *, warm: bool) -> dict[str, Future[None]]:
    """Play several cases in parallel, each on a separate fleet, because a case waits most of the time.

    Args:
        names: Of the cases.
        directory: Directory of all files, which is created.
        warm: Tasks may be forked from warm processes.
    """
    directory.mkdir()
    variables = {"PYTHONPATH": make_import(directory / "site")} if warm else {}
    pythons = dict.fromkeys(range(3), separate_interpreter(directory / "python"))
    free: SimpleQueue[FaultFleet] = SimpleQueue()

    def played(name: str) -> None:
        fleet = free.get()
        try:
            play(CASES[name], fleet, gate="at the gate" in name, warm=warm)
        finally:
            fleet.clear()
            free.put(fleet)

    with ExitStack() as stack:
        for number in range(SIDE_BY_SIDE):
            place = directory / f"fleet-{number}"
            free.put(stack.enter_context(fault_fleet(place, 3, pythons=pythons, variables=variables)))
        pool = stack.enter_context(ThreadPoolExecutor(SIDE_BY_SIDE))
        return {name: pool.submit(played, name) for name in names}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("warm", [False, True])
def test_each_fault_ends_as_the_policy_states(subtests: pytest.Subtests, *, warm: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="fleet-") as directory:  # short enough for sockets of resident agents
        for name, done in play_cases(WARM_SAMPLE if warm else SAMPLE, Path(directory) / "cases", warm=warm).items():
            with subtests.test(name):
                done.result()


@pytest.fixture
def jumping(tmp_path: Path) -> Iterator[tuple[FaultFleet, Path]]:
    """Yield three hosts; the clock of the second host's agent is one hour ahead while a file exists."""
    (tmp_path / "clock.py").write_text(CLOCK)
    python = tmp_path / "python-jumps"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in\n"-I -S /"*) exec {PYTHON} -I -S {tmp_path}/clock.py "$@" ;;\n'
        f'*) exec {PYTHON} "$@" ;;\nesac\n'
    )
    python.chmod(0o755)
    with fault_fleet(tmp_path / "fleet", 3, pythons={1: str(python)}) as fleet:
        yield fleet, tmp_path / "ahead"


# Runs the agent, whose path follows -I -S, with a clock that jumps.
CLOCK = """
import os, runpy, sys, time
now, ahead = time.time, os.path.join(os.path.dirname(os.path.abspath(__file__)), "ahead")
time.time = lambda: now() + 3600 * os.path.exists(ahead)
sys.argv[:] = sys.argv[3:]
sys.executable = os.path.join(os.path.dirname(os.path.abspath(__file__)), "python-jumps")  # after it is unpacked
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_clock_that_jumps_by_an_hour_and_back_changes_nothing(jumping: tuple[FaultFleet, Path]) -> None:
    fleet, ahead = jumping
    job = fleet.train(SCRIPT, "--backoff", "0.1", *RESTART, arguments=["1000"])
    job.wait_for_log(0, "say saved 10")
    ahead.touch()
    job.wait_for_log(0, "say saved 25")
    job.send(2, "task")
    job.wait_for_record(1, "attempt_ended")
    ahead.unlink()
    report = job.finish(0, DEADLINE_S)
    ended = next(
        event for event in report.of("task_state") if event["task"] == "worker-1" and event["phase"] == "exited"
    )
    assert ended["at"] - ended["time"] > 3000
    assert [verdict[:2] for verdict in report.verdicts] == [(1, "killed")]
    job.nothing_is_left()
    job.no_byte_is_lost(report)
    continues_at_checkpoint(job, report, Case(fault=nothing, ended=((1, "killed", ""),)))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[FaultFleet]:
    """Yield two hosts, with the directory of the first on a separate file system."""
    root = tmp_path / "fleet" / "host-0" / "fleet"
    root.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(root)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"tmpfs cannot be mounted here: {done.stderr.strip()}")
    try:
        with fault_fleet(tmp_path / "fleet", 2) as fleet:
            yield fleet
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)


def test_a_disk_that_is_full_under_the_chiefs_checkpoints(small_disk: FaultFleet) -> None:
    job = small_disk.train(SCRIPT, *LINK, "--checkpoint-bandwidth", "0", arguments=["1000"])
    job.wait_for_log(0, "say saved 5")
    with contextlib.suppress(OSError), (small_disk.hosts[0].root / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    report = job.finish(100, DEADLINE_S)
    assert report.verdict == ("disk-full", "worker-0"), report.of("job_diagnosed")
    job.nothing_is_left()
    job.no_byte_is_lost(report, cut=(0,))
