# ruff: noqa: E501 - one row a line
"""The verdict on hosts and on the connections between them, before user code runs."""

from __future__ import annotations

import math
from itertools import permutations

import pytest

from train.agent.gang.readiness import (
    REFUSED,
    STRANGER,
    TIMED_OUT,
    Readiness,
    ReadinessFacts,
    probed_tasks,
    verdict,
    visible,
)
from train.agent.protocol.cluster import by_rank
from train.agent.protocol.records import Member

FACTS = ReadinessFacts(
    {"python": "3.11.7", "tensorflow": "2.21.0", "keras": "3.15.1", "tf_keras": "2.21.0"}, [], 1 << 40
)
T4, L4 = FACTS._replace(gpus=["Tesla T4"]), FACTS._replace(gpus=["NVIDIA L4"])
ALL_TCP = "(all TCP among the hosts of the fleet)"
OPEN = f"open TCP port 2222 between the hosts {ALL_TCP}"


def members(*tasks: str) -> list[Member]:
    return [Member(task, task, f"10.0.0.{n + 2}", 2222, 4000) for n, task in enumerate(tasks)]


def workers(count: int) -> list[str]:
    return [f"worker-{n}" for n in range(count)]


def checked(
    tasks: list[str],
    broken: dict[tuple[int, int], str] | None = None,
    changed: dict[int, ReadinessFacts] | None = None,
) -> Readiness:
    """Return the verdict on tasks, with broken pairs and changed facts."""
    numbers = permutations(range(len(tasks)), 2)
    pairs = {(tasks[a], tasks[b]): (broken or {}).get((a, b), "") for a, b in numbers}
    facts = {task: (changed or {}).get(n, FACTS) for n, task in enumerate(tasks)}
    return verdict(members(*tasks), facts, pairs)


def with_version(**versions: str) -> ReadinessFacts:
    return FACTS._replace(versions={name: text for name, text in {**FACTS.versions, **versions}.items() if text})


# Number of workers, broken pairs, sentences, the task to blame.
UNREACHABLE: list[tuple[int, dict[tuple[int, int], str], list[str], str]] = [
    (2, {(1, 0): TIMED_OUT}, [f"worker-1 (10.0.0.3) cannot reach worker-0 at 10.0.0.2:2222: timed out; {OPEN}"], "worker-0"),
    (2, {(0, 1): REFUSED}, [f"worker-0 (10.0.0.2) cannot reach worker-1 at 10.0.0.3:2222: connection refused; check that 10.0.0.3 is the address of the host of worker-1, and that no firewall rejects TCP port 2222 between the hosts {ALL_TCP}"], "worker-1"),
    (2, dict.fromkeys([(0, 1), (1, 0)], "no route to host"), [f"worker-1 (10.0.0.3) cannot reach worker-0 at 10.0.0.2:2222: no route to host; {OPEN}", f"worker-0 (10.0.0.2) cannot reach worker-1 at 10.0.0.3:2222: no route to host; {OPEN}"], ""),
    (4, dict.fromkeys([(0, 2), (1, 2)], TIMED_OUT), [f"worker-0 (10.0.0.2) and worker-1 (10.0.0.3) cannot reach worker-2 at 10.0.0.4:2222: timed out; {OPEN}"], "worker-2"),
    (4, dict.fromkeys([(0, 2), (1, 2), (3, 2)], TIMED_OUT), [f"none of the others (worker-0 (10.0.0.2), worker-1 (10.0.0.3) and worker-3 (10.0.0.5)) can reach worker-2 at 10.0.0.4:2222: timed out; {OPEN}"], "worker-2"),
    (3, dict.fromkeys([(2, 0), (2, 1)], TIMED_OUT), [f"worker-2 (10.0.0.4) can reach none of the others (worker-0 at 10.0.0.2:2222 and worker-1 at 10.0.0.3:2222): timed out; {OPEN}"], "worker-2"),
    (3, dict.fromkeys([(2, 0), (2, 1), (0, 2), (1, 2)], TIMED_OUT), [f"worker-2 (10.0.0.4) can reach none of the others (worker-0 at 10.0.0.2:2222 and worker-1 at 10.0.0.3:2222): timed out; {OPEN}", f"none of the others (worker-0 (10.0.0.2) and worker-1 (10.0.0.3)) can reach worker-2 at 10.0.0.4:2222: timed out; {OPEN}"], "worker-2"),
    (3, dict.fromkeys(permutations(range(3), 2), TIMED_OUT), [f"no host can reach another (worker-0 at 10.0.0.2:2222, worker-1 at 10.0.0.3:2222 and worker-2 at 10.0.0.4:2222): timed out; {OPEN}"], ""),
    (2, {(0, 1): STRANGER}, ["worker-0 (10.0.0.2) cannot reach worker-1 at 10.0.0.3:2222: another program answers there; check that 10.0.0.3 is the address of the host of worker-1, and of no other host"], "worker-1"),
]  # fmt: skip


@pytest.mark.parametrize(("count", "broken", "sentences", "first"), UNREACHABLE)
def test_unreachable_ports_are_described(
    count: int, broken: dict[tuple[int, int], str], sentences: list[str], first: str
) -> None:
    result = checked(workers(count), broken)
    assert (list(result.problems), result.first_failed_task) == (sentences, first)


def test_missing_reports_are_problems() -> None:
    result = verdict(members(*workers(2)), {"worker-0": FACTS}, {("worker-0", "worker-1"): ""})
    assert [text.partition(" (")[0] for text in result.problems] == ["worker-1", "worker-1"]
    assert result.first_failed_task == "worker-1"


# Changed facts of three workers, the beginning of the only problem, the task to blame.
MISFITS = [
    ({1: with_version(tensorflow="2.19.1")}, "TensorFlow differs: 2.21 on worker-0 (10.0.0.2) and worker-2 (10.0.0.4), 2.19 on worker-1 (10.0.0.3)", "worker-1"),
    ({0: with_version(tensorflow="")}, "TensorFlow differs: none on worker-0 (10.0.0.2), 2.21 on worker-1 (10.0.0.3) and worker-2 (10.0.0.4)", "worker-0"),
    ({1: with_version(keras="3.10.0")}, "Keras differs: 3.15 on", "worker-1"),
    ({1: with_version(tf_keras="2.20.1")}, "tf-keras differs: 2.21 on", "worker-1"),
    ({0: T4, 1: T4}, "GPUs differ: 1 x Tesla T4 on worker-0 (10.0.0.2) and worker-1 (10.0.0.3), none on worker-2 (10.0.0.4)", "worker-2"),
    ({2: FACTS._replace(disk_free=(64 << 20) - 1)}, "worker-2 (10.0.0.4) has 64.0 MiB of disk left for the job, less than 64.0 MiB; free some space", "worker-2"),
    ({n: FACTS._replace(machine="aarch64" if n else "x86_64") for n in range(3)}, "the hosts have different architectures: x86_64 on worker-0 (10.0.0.2), aarch64 on worker-1 (10.0.0.3)", "worker-0"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "message", "first"), MISFITS)
def test_hosts_that_do_not_fit_together(changed: dict[int, ReadinessFacts], message: str, first: str) -> None:
    result = checked(workers(3), changed=changed)
    (problem,) = result.problems
    assert problem.startswith(message)
    assert result.first_failed_task == first


def test_no_task_is_blamed_for_the_problem_of_another() -> None:
    assert checked(workers(2), changed={1: with_version(tensorflow="2.19.1")}).first_failed_task == ""
    result = checked(workers(3), {(0, 1): TIMED_OUT}, {2: FACTS._replace(disk_free=0)})
    assert (len(result.problems), result.first_failed_task) == (2, "")


# Tasks whose facts differ and fit together nevertheless.
FITTING = [
    (workers(2), {1: with_version(tensorflow="2.21.1", keras="3.15.0.dev2026")}),
    (workers(2), {0: FACTS._replace(machine="x86_64")}),
    (workers(2), {1: FACTS._replace(ahead_s=5.0)}),
    (["worker-0", "evaluator-0"], {0: FACTS._replace(machine="x86_64"), 1: FACTS._replace(machine="aarch64")}),
    (["worker-0", "worker-1", "ps-0"], {0: T4, 1: T4}),
    (["chief-0", "worker-0", "ps-0"], {1: T4}),
]


@pytest.mark.parametrize(("tasks", "changed"), FITTING)
def test_differences_that_do_not_matter(tasks: list[str], changed: dict[int, ReadinessFacts]) -> None:
    assert checked(tasks, changed=changed).problems == ()


WARNINGS = [
    ({1: with_version(python="3.12.0")}, "Python differs: 3.11 on worker-0 (10.0.0.2), 3.12 on worker-1 (10.0.0.3)"),
    ({1: with_version(tf_keras="")}, "tf-keras is not on all hosts: 2.21 on worker-0 (10.0.0.2), none on worker-1"),
    ({0: T4, 1: L4}, "GPUs are of different kinds: 1 x Tesla T4 on worker-0 (10.0.0.2), 1 x NVIDIA L4 on worker-1 (10.0.0.3)"),
    ({1: FACTS._replace(ahead_s=-5.1)}, "the clock of worker-0 (10.0.0.2) is 5 s ahead of that of worker-1 (10.0.0.3)"),
    ({1: FACTS._replace(disk_free=1 << 30)}, "disk space is low: 1.0 GiB on worker-1 (10.0.0.3); list ended jobs with fleet jobs, delete them with --prune"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "warning"), WARNINGS)
def test_warnings_do_not_prevent_the_start(changed: dict[int, ReadinessFacts], warning: str) -> None:
    result = checked(workers(2), changed=changed)
    (message,) = result.warnings
    assert (result.problems, message[: len(warning)]) == ((), warning)


@pytest.mark.parametrize(
    ("setting", "seen"),
    [
        (None, ["a", "b"]), ("", []), ("-1", []), ("1", ["b"]), ("1, 0", ["b", "a"]), ("0,7,1", ["a"]),
        ("GPU-8932f937", ["a"]), ("NoDevFiles", []),
    ],
)  # fmt: skip
def test_the_gpus_that_a_task_will_see(setting: str | None, seen: list[str]) -> None:
    assert visible(["a", "b"], setting) == seen


# --- large gangs: not all pairs are probed ------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [33, 64, 100, 1000])
def test_probes_of_a_large_gang_grow_with_the_logarithm_and_cover_the_ring(count: int) -> None:
    gang = members(*workers(count))
    probed = probed_tasks(gang)
    for at, member in enumerate(gang):
        neighbours = {gang[(at + 1) % count].task, gang[at - 1].task, gang[0].task} - {member.task}
        assert neighbours <= set(probed[member.task])
        assert len(probed[member.task]) <= 2 * math.ceil(math.log2(count)) + 1 or at == 0
    probers = [sum(task in targets for targets in probed.values()) for task in probed]
    assert min(probers) >= math.floor(math.log2(count))


def test_parameter_servers_and_the_chief_are_probed_by_all_and_probe_all() -> None:
    gang = by_rank(members("chief-0", *workers(60), "ps-0", "ps-1"))
    probed = probed_tasks(gang)
    for hub in ("chief-0", "ps-0", "ps-1"):
        assert len(probed[hub]) == len(gang) - 1
        assert all(hub in targets for task, targets in probed.items() if task != hub)


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ({(n, 40): TIMED_OUT for n in range(64)}, "none of the others that were tried ("),
        (
            {(40, n): TIMED_OUT for n in range(64)},
            "worker-40 (10.0.0.42) can reach none of the others that were tried (",
        ),
    ],
)
def test_a_blocked_host_of_a_large_gang_is_named(broken: dict[tuple[int, int], str], text: str) -> None:
    gang = members(*workers(64))
    numbers = {member.task: number for number, member in enumerate(gang)}
    pairs = {
        (task, target): broken.get((numbers[task], numbers[target]), "")
        for task, targets in probed_tasks(gang).items()
        for target in targets
    }
    result = verdict(gang, dict.fromkeys(numbers, FACTS), pairs)
    (problem,) = result.problems
    assert (result.first_failed_task, problem[: len(text)]) == ("worker-40", text)
