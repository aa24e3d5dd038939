"""The verdict of the gate on hosts and on the connections between them."""

from __future__ import annotations

from itertools import permutations

import pytest

from train.agent.gang.readiness import (
    REFUSED,
    SILENT,
    STRANGER,
    TIMED_OUT,
    UNKNOWN_NAME,
    Readiness,
    ReadinessFacts,
    verdict,
    visible,
)
from train.agent.protocol.records import Member

FACTS = ReadinessFacts(
    {"python": "3.11.7", "tensorflow": "2.21.0", "keras": "3.15.1", "tf_keras": "2.21.0"}, [], 1 << 40
)
ALL_TCP = "(all TCP among the hosts of the fleet)"
OPEN = f"open TCP port 2222 between the hosts {ALL_TCP}"


def members(count: int) -> list[Member]:
    return [Member(f"worker-{n}", f"worker-{n}", f"10.0.0.{n + 2}", 2222, 4000) for n in range(count)]


def judged(
    count: int, broken: dict[tuple[int, int], str] | None = None, changed: dict[int, ReadinessFacts] | None = None
) -> Readiness:
    """Return the verdict on `count` hosts, with broken pairs and changed facts."""
    pairs = {(f"worker-{a}", f"worker-{b}"): (broken or {}).get((a, b), "") for a, b in permutations(range(count), 2)}
    facts = {f"worker-{n}": (changed or {}).get(n, FACTS) for n in range(count)}
    return verdict(members(count), facts, pairs)


def with_version(**versions: str) -> ReadinessFacts:
    return FACTS._replace(versions={name: text for name, text in {**FACTS.versions, **versions}.items() if text})


def test_hosts_that_are_alike_and_reach_each_other_may_start() -> None:
    assert judged(1) == judged(4) == Readiness((), (), "")


@pytest.mark.parametrize(
    ("count", "broken", "sentences", "first"),
    [
        (
            2,
            {(1, 0): TIMED_OUT},
            [f"worker-1 (10.0.0.3) cannot reach worker-0 at 10.0.0.2:2222: timed out; {OPEN}"],
            "worker-0",
        ),
        (
            2,
            {(0, 1): REFUSED},
            [
                "worker-0 (10.0.0.2) cannot reach worker-1 at 10.0.0.3:2222: connection refused; check that 10.0.0.3 "
                "is the address of the host of worker-1, and that no firewall rejects TCP port 2222 between the "
                f"hosts {ALL_TCP}"
            ],
            "worker-1",
        ),
        (
            2,
            {(0, 1): "no route to host", (1, 0): "no route to host"},
            [
                f"worker-1 (10.0.0.3) cannot reach worker-0 at 10.0.0.2:2222: no route to host; {OPEN}",
                f"worker-0 (10.0.0.2) cannot reach worker-1 at 10.0.0.3:2222: no route to host; {OPEN}",
            ],
            "",
        ),
        (
            4,
            {(0, 2): TIMED_OUT, (1, 2): TIMED_OUT},
            [
                "worker-0 (10.0.0.2) and worker-1 (10.0.0.3) cannot reach worker-2 at 10.0.0.4:2222: timed out; "
                f"{OPEN}"
            ],
            "worker-2",
        ),
        (
            4,
            {(n, 2): TIMED_OUT for n in (0, 1, 3)},
            [
                "none of the others (worker-0 (10.0.0.2), worker-1 (10.0.0.3) and worker-3 (10.0.0.5)) can reach "
                f"worker-2 at 10.0.0.4:2222: timed out; {OPEN}"
            ],
            "worker-2",
        ),
        (
            3,
            {(2, 0): TIMED_OUT, (2, 1): TIMED_OUT},
            [
                "worker-2 (10.0.0.4) can reach none of the others (worker-0 at 10.0.0.2:2222 and worker-1 at "
                f"10.0.0.3:2222): timed out; {OPEN}"
            ],
            "worker-2",
        ),
        (
            3,
            {(2, 0): TIMED_OUT, (2, 1): TIMED_OUT, (0, 2): TIMED_OUT, (1, 2): TIMED_OUT},
            [
                "worker-2 (10.0.0.4) can reach none of the others (worker-0 at 10.0.0.2:2222 and worker-1 at "
                f"10.0.0.3:2222): timed out; {OPEN}",
                "none of the others (worker-0 (10.0.0.2) and worker-1 (10.0.0.3)) can reach worker-2 at "
                f"10.0.0.4:2222: timed out; {OPEN}",
            ],
            "worker-2",
        ),
        (
            3,
            dict.fromkeys(permutations(range(3), 2), TIMED_OUT),
            [
                "no host can reach another (worker-0 at 10.0.0.2:2222, worker-1 at 10.0.0.3:2222 and worker-2 at "
                f"10.0.0.4:2222): timed out; {OPEN}"
            ],
            "",
        ),
        (
            2,
            {(0, 1): STRANGER},
            [
                "worker-0 (10.0.0.2) cannot reach worker-1 at 10.0.0.3:2222: another program answers there; "
                "check that 10.0.0.3 is the address of the host of worker-1, and of no other host"
            ],
            "worker-1",
        ),
    ],
)
def test_unreachable_ports_are_described(
    count: int, broken: dict[tuple[int, int], str], sentences: list[str], first: str
) -> None:
    result = judged(count, broken)
    assert list(result.problems) == sentences
    assert result.first_failed_task == first


@pytest.mark.parametrize("clause", [UNKNOWN_NAME, SILENT, "worker-0 answers there", "permission denied"])
def test_every_other_obstacle_names_both_ends_and_a_way_out(clause: str) -> None:
    (message,) = judged(3, {(0, 2): clause}).problems
    assert message.startswith(f"worker-0 (10.0.0.2) cannot reach worker-2 at 10.0.0.4:2222: {clause}; ")


def test_a_long_list_is_cut() -> None:
    (message,) = judged(9, {(n, 0): TIMED_OUT for n in range(1, 9)}).problems
    assert "worker-1 (10.0.0.3), worker-2 (10.0.0.4), worker-3 (10.0.0.5) and 5 more" in message


def test_missing_reports_are_problems() -> None:
    pairs = {("worker-0", "worker-1"): ""}
    facts = {"worker-0": FACTS}
    result = verdict(members(2), facts, pairs)
    assert [text.partition(" (")[0] for text in result.problems] == ["worker-1", "worker-1"]
    assert result.first_failed_task == "worker-1"


@pytest.mark.parametrize(
    ("changed", "message", "first"),
    [
        (
            {1: with_version(tensorflow="2.19.1")},
            "TensorFlow differs: 2.21 on worker-0 (10.0.0.2) and worker-2 (10.0.0.4), 2.19 on worker-1 (10.0.0.3)",
            "worker-1",
        ),
        (
            {0: with_version(tensorflow="")},
            "TensorFlow differs: none on worker-0 (10.0.0.2), 2.21 on worker-1 (10.0.0.3) and worker-2 (10.0.0.4)",
            "worker-0",
        ),
        ({1: with_version(keras="3.10.0")}, "Keras differs: 3.15 on", "worker-1"),
        ({1: with_version(tf_keras="2.20.1")}, "tf-keras differs: 2.21 on", "worker-1"),
        (
            {0: FACTS._replace(gpus=["Tesla T4"]), 1: FACTS._replace(gpus=["Tesla T4"])},
            "GPUs differ: 1 x Tesla T4 on worker-0 (10.0.0.2) and worker-1 (10.0.0.3), none on worker-2 (10.0.0.4)",
            "worker-2",
        ),
        (
            {2: FACTS._replace(disk_free=(64 << 20) - 1)},
            "worker-2 (10.0.0.4) has 64.0 MiB of disk left for the job, less than 64.0 MiB; free some space",
            "worker-2",
        ),
    ],
)
def test_hosts_that_do_not_fit_together(changed: dict[int, ReadinessFacts], message: str, first: str) -> None:
    result = judged(3, changed=changed)
    (problem,) = result.problems
    assert problem.startswith(message)
    assert result.first_failed_task == first


def test_of_two_that_differ_neither_is_blamed() -> None:
    assert judged(2, changed={1: with_version(tensorflow="2.19.1")}).first_failed_task == ""


def test_all_problems_are_reported_and_no_task_is_blamed_for_those_of_another() -> None:
    result = judged(3, {(0, 1): TIMED_OUT}, {2: FACTS._replace(disk_free=0)})
    assert len(result.problems) == 2
    assert result.first_failed_task == ""


def test_patches_and_nightlies_of_one_release_fit_together() -> None:
    assert judged(2, changed={1: with_version(tensorflow="2.21.1", keras="3.15.0.dev2026")}) == Readiness((), (), "")


def test_gpus_of_a_parameter_server_do_not_count() -> None:
    gang = [*members(2), Member("ps-0", "ps-0", "10.0.0.9", 2222, 4000)]
    pairs = {(a.task, b.task): "" for a, b in permutations(gang, 2)}
    facts = {member.task: FACTS._replace(gpus=["Tesla T4"]) for member in gang[:2]}
    assert verdict(gang, {**facts, "ps-0": FACTS}, pairs).problems == ()


@pytest.mark.parametrize(
    ("changed", "warning"),
    [
        (
            {1: with_version(python="3.12.0")},
            "Python differs: 3.11 on worker-0 (10.0.0.2), 3.12 on worker-1 (10.0.0.3)",
        ),
        (
            {1: with_version(tf_keras="")},
            "tf-keras is not on all hosts: 2.21 on worker-0 (10.0.0.2), none on worker-1",
        ),
        (
            {0: FACTS._replace(gpus=["Tesla T4"]), 1: FACTS._replace(gpus=["NVIDIA L4"])},
            "GPUs are of different kinds: 1 x Tesla T4 on worker-0 (10.0.0.2), 1 x NVIDIA L4 on worker-1 (10.0.0.3)",
        ),
        (
            {1: FACTS._replace(ahead_s=-5.1)},
            "the clock of worker-0 (10.0.0.2) is 5 s ahead of that of worker-1 (10.0.0.3)",
        ),
    ],
)
def test_what_is_only_worth_knowing(changed: dict[int, ReadinessFacts], warning: str) -> None:
    result = judged(2, changed=changed)
    assert result.problems == ()
    (message,) = result.warnings
    assert message.startswith(warning)


def test_a_nearly_full_disk_is_a_warning_with_the_command_that_frees_it() -> None:
    result = judged(3, changed={1: FACTS._replace(disk_free=1 << 30)})
    assert not result.problems
    assert result.warnings == (
        "disk space is low: 1.0 GiB on worker-1 (10.0.0.3); list ended jobs with fleet jobs, delete them with "
        "--prune",
    )


def test_hosts_of_two_architectures_are_named() -> None:
    result = judged(2, changed={0: FACTS._replace(machine="x86_64"), 1: FACTS._replace(machine="aarch64")})
    assert result.problems == (
        "the hosts have different architectures: x86_64 on worker-0 (10.0.0.2), aarch64 on worker-1 (10.0.0.3); "
        "use hosts of one architecture",
    )
    assert judged(2, changed={0: FACTS._replace(machine="x86_64")}).problems == ()


def test_an_evaluator_may_be_of_another_architecture() -> None:
    both = [
        Member("worker-0", "worker-0", "10.0.0.2", 2222, 4000),
        Member("evaluator-0", "evaluator-0", "10.0.0.3", 2222, 4000),
    ]
    facts = {"worker-0": FACTS._replace(machine="x86_64"), "evaluator-0": FACTS._replace(machine="aarch64")}
    pairs = {("worker-0", "evaluator-0"): "", ("evaluator-0", "worker-0"): ""}
    assert verdict(both, facts, pairs).problems == ()


def test_clocks_five_seconds_apart_are_close_enough() -> None:
    assert judged(2, changed={1: FACTS._replace(ahead_s=5.0)}).warnings == ()


@pytest.mark.parametrize(
    ("setting", "seen"),
    [
        (None, ["a", "b"]),
        ("", []),
        ("-1", []),
        ("1", ["b"]),
        ("1, 0", ["b", "a"]),
        ("0,7,1", ["a"]),
        ("GPU-8932f937", ["a"]),
        ("NoDevFiles", []),
    ],
)
def test_the_gpus_that_a_task_will_see(setting: str | None, seen: list[str]) -> None:
    assert visible(["a", "b"], setting) == seen
