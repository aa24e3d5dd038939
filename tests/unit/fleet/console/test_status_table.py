from __future__ import annotations

import io
import json
import re
from dataclasses import replace

from fleet.console.status_table import print_status, render_status, watch_status
from fleet.events import (
    UNREADY,
    Exit,
    FleetStatus,
    HostStatus,
    JobResult,
    JobStatus,
    Outcome,
    Phase,
    Progress,
    StoredStatus,
    TaskStatus,
    describe_maintenance,
)
from tests.screen import Screen
from train.diagnosis.verdict import Cause, Verdict

NOW = 1_000_000.0
HOSTS = (
    HostStatus("worker-0", "127.0.0.2", 22001, True, "", 180.0, 1_234_567_890),
    HostStatus("worker-1", "127.0.0.3", 22002, False, "timed out"),
)
PROGRESS = Progress("worker-0", "worker-0", 1, NOW, 2, 5, 84, 120, {"accuracy": 0.9, "loss": 0.85}, 12.3)
TASKS = (
    TaskStatus("worker-0", "worker-0", Phase.RUNNING, True, progress=PROGRESS),
    TaskStatus("worker-1", "worker-1"),
)
FAILED = JobResult("j", 1, Outcome.FAILED, NOW, reason="worker-1 exited with code 1")
JOB = JobStatus("20260102-101112-ab3d", "task.py", 1, NOW - 500, TASKS)
FLEET = FleetStatus("demo", "gce", HOSTS, JOB, 0.7, NOW - 4000, NOW + 3600, 0.78)


def test_a_fleet_at_work() -> None:
    assert render_status([FLEET], now=NOW).splitlines() == [
        "demo  gce, 2 hosts           up 1 h 6 min  $0.70/h, $0.78 so far  deleted in 1 h",
        "  HOST      STATE      ADDRESS           CPU   MEM",
        "  worker-0  ready      127.0.0.2:22001  180%  1.1G",
        "  worker-1  no answer  127.0.0.3:22002",
        "  worker-1: timed out",
        "",
        "job 20260102-101112-ab3d  running  task.py                                  8:20",
        "  TASK      STATE    EPOCH    STEP  STEPS/S    LOSS  ACCURACY",
        "  worker-0  running    2/5  84/120     12.3  0.8500    0.9000",
        "  worker-1  unknown",
    ]


def test_the_commands_for_an_unfinished_fleet_are_not_cut() -> None:
    reason = "fleet up has not finished; repeat `fleet up --fleet demo`, or delete it with `fleet down --fleet demo`"
    hosts = (HostStatus(UNREADY, "", 0, False, reason),)
    text = render_status([FleetStatus("demo", "gce", hosts)], now=NOW)
    assert " ".join(text.split()) == f"demo gce, not ready {reason}"
    assert max(map(len, text.splitlines())) <= 80
    assert ":0" not in text


def test_time_and_cost_have_their_own_line_if_the_name_would_be_cut() -> None:
    fleet = replace(FLEET, name="resnet-imagenet-large", max_cost_usd=250.0, cost_usd=120.5, delete_at=NOW + 8000)
    assert render_status([fleet], now=NOW).splitlines()[:3] == [
        "resnet-imagenet-large  gce, 2 hosts",
        "  up 1 h 6 min  $0.70/h, $120.50 of $250.00 so far  deleted in 2 h 13 min",
        "  HOST      STATE      ADDRESS           CPU   MEM",
    ]
    lines = render_status([FLEET], now=NOW, width=40).splitlines()
    assert lines[:3] == ["demo  gce, 2 hosts", "  up 1 h 6 min  $0.70/h, $0.78 so far", "  deleted in 1 h"]


def test_planned_maintenance_is_shown_with_its_hosts() -> None:
    hosts = tuple(replace(host, maintenance=(NOW + 86400, NOW + 90000)) for host in HOSTS)
    text = render_status([replace(FLEET, hosts=hosts)], now=NOW)
    assert re.search(r"^  maintenance 1970-01-1. ..:.. to 1970-01-1. ..:..: stops worker-\[?0", text, re.M)
    assert describe_maintenance({"worker-0": (1e30, 0.0), "worker-1": (0.0, 0.0), "worker-2": ()}) == []


def test_a_limited_cost() -> None:
    [first, *_] = render_status([replace(FLEET, max_cost_usd=5.0)], now=NOW).splitlines()
    assert first.endswith("$0.70/h, $0.78 of $5.00 so far  deleted in 1 h")


def test_a_reason_that_several_hosts_share_is_shown_once() -> None:
    hosts = tuple(
        HostStatus(f"worker-{index}", "10.0.0.2", 22, False, f"worker-{index} was deleted at 12:00")
        for index in range(4)
    )
    hosts = (*hosts, HostStatus("worker-4", "10.0.0.6", 22, False, "timed out"))
    lines = render_status([FleetStatus("demo", "gce", hosts)], now=NOW).splitlines()
    assert lines[-3:-1] == ["  worker-0 was deleted at 12:00; the same for worker-[1-3]", "  worker-4: timed out"]


def test_an_idle_fleet() -> None:
    fleet = FleetStatus("demo", "local", HOSTS[:1])
    assert render_status([fleet], now=NOW).splitlines()[-1] == "  no job yet"


def test_what_hosts_store_takes_a_few_lines() -> None:
    hosts = [
        replace(host, disk_free=free, disk_total=100 << 30)
        for host, free in zip(HOSTS, (9 << 30, 1 << 30), strict=True)
    ]
    stored = tuple(StoredStatus(f"j-{number}", 1 << (30 - number), "no" if number else "yes") for number in range(3))
    lines = render_status([FleetStatus("demo", "local", tuple(hosts), stored=stored)], now=NOW).splitlines()
    assert lines[-4:] == [
        "  stored: 3 jobs, 1.8 GiB; 1.0 GiB of 100.0 GiB free on worker-1",
        "  largest: j-0 1.0 GiB, j-1 512.0 MiB",
        "  2 jobs not pulled; `fleet jobs --fleet demo --prune`",
        "  no job yet",
    ]
    enough = FleetStatus("demo", "local", (hosts[0],), stored=stored)
    lines = render_status([enough], now=NOW).splitlines()
    assert lines[-2:] == ["  2 jobs not pulled; `fleet jobs --fleet demo`", "  no job yet"]
    assert not [line for line in lines if "stored:" in line or "largest:" in line or "memory on" in line]
    rented = FleetStatus("demo", "gce", (replace(hosts[0]),), stored=stored, delete_at=NOW + 2400)
    assert "  2 jobs not pulled; deleted with the hosts in 40 min; `fleet pull --fleet demo`" in render_status(
        [rented], now=NOW
    )


def test_a_fleet_without_hosts() -> None:
    assert render_status([FleetStatus("demo", "local")], now=NOW) == "demo  local, 0 hosts\n  no job yet\n"


def test_how_a_job_ended() -> None:
    tasks = (
        TaskStatus("worker-0", "worker-0", Phase.EXITED, exit=Exit(None, 15)),
        TaskStatus("worker-1", "worker-1", Phase.EXITED, exit=Exit(3)),
    )
    result = JobResult("j", 2, Outcome.FAILED, NOW - 440, "worker-1", "worker-1 ran out of memory")
    job = JobStatus("j", "task.py", 2, NOW - 500, tasks, result)
    text = render_status([FleetStatus("demo", "local", HOSTS[:1], job)], now=NOW)
    assert re.search(r"^job j  failed  attempt 2  task.py +1:00$", text, re.MULTILINE)
    assert "worker-0  SIGTERM" in text
    assert "worker-1  exit 3" in text
    assert text.endswith("  worker-1 ran out of memory\n")


def test_the_first_cause_replaces_the_reasons_of_the_agents() -> None:
    verdict = Verdict("worker-1", Cause.SCRIPT_EXCEPTION, "worker-1 raised ValueError: " + "no such thing " * 9)
    job = JobStatus("j", "task.py", 1, NOW, result=FAILED)
    fleet = FleetStatus("demo", "local", HOSTS[:1], replace(job, verdict=verdict))
    lines = render_status([fleet], now=NOW).splitlines()
    assert " ".join(line.strip() for line in lines[-2:]) == verdict.message.strip()
    assert "exited with code 1" not in "\n".join(lines)
    assert render_status([FleetStatus("demo", "local", (), job)], now=NOW).endswith("exited with code 1\n")


def test_an_unknown_cause_is_shown_with_the_last_words_as_train_shows_it() -> None:
    message = "worker-1 exited with code 1; last output: giving up"
    job = JobStatus("j", "task.py", 1, NOW, result=FAILED)
    unknown = replace(job, verdict=Verdict("worker-1", Cause.UNKNOWN, message))
    assert render_status([FleetStatus("demo", "local", (), unknown)], now=NOW).endswith(f"{message}\n")


def test_between_two_attempts_and_a_spare() -> None:
    tasks = (
        TaskStatus("worker-0", "worker-0", Phase.EXITED, alive=True, exit=Exit(1)),
        TaskStatus("worker-1", "worker-2", Phase.EXITED, alive=True, exit=Exit(1)),
        TaskStatus("", "worker-1", Phase.WAITING, alive=True),
    )
    job = JobStatus("j", "task.py", 2, NOW - 5, tasks, attempts=4, waits=True)
    lines = render_status([FleetStatus("demo", "local", HOSTS[:1], job)], now=NOW).splitlines()
    assert re.fullmatch(r"job j  waiting to start again  attempt 2 of 4  task.py +0:05", lines[-5])
    assert lines[-2] == "  worker-1 on worker-2  exit 1"
    assert lines[-1] == "  worker-1              spare"


def test_a_task_without_a_supervisor_is_lost() -> None:
    job = JobStatus("j", "task.py", 1, NOW, (TaskStatus("worker-0", "worker-0", Phase.RUNNING, alive=False),))
    text = render_status([FleetStatus("demo", "local", HOSTS[:1], job)], now=NOW)
    assert "worker-0  lost" in text
    assert "job j  unknown" in text


def test_no_line_is_longer_than_the_terminal() -> None:
    long = FleetStatus(
        "demo" * 30,
        "gce",
        HOSTS,
        JobStatus("j" * 90, "x" * 90, 1, 1.0, TASKS, replace(FAILED, reason="why " * 40)),
        0.7,
        1.0,
    )
    for width in (40, 80, 100):
        assert max(map(len, render_status([long], now=NOW, width=width).splitlines())) <= width


def test_an_empty_line_separates_fleets() -> None:
    fleets = [FleetStatus("a", "local"), FleetStatus("b", "local")]
    assert render_status(fleets, now=NOW).count("\n\n") == 1


def test_colours_and_control_characters() -> None:
    fleet = FleetStatus("demo", "local", (HostStatus("worker-1", "127.0.0.3", 1, False, "evil\x1b[2J"),))
    assert "\x1b" not in render_status([fleet], now=NOW)
    assert "\x1b[1mdemo\x1b[0m" in render_status([fleet], now=NOW, color=True)
    assert "\x1b[2J" not in render_status([fleet], now=NOW, color=True)


def test_tables_are_folded_to_the_height_of_the_terminal() -> None:
    names = [f"worker-{number}" for number in range(32)]
    hosts = tuple(
        HostStatus(name, "127.0.0.2", 1, name != "worker-30", "timed out" * (name == "worker-30")) for name in names
    )
    late = replace(PROGRESS, step=2, steps_per_s=1.0)
    tasks = tuple(
        TaskStatus(name, name, Phase.RUNNING, True, progress=late if name == "worker-29" else PROGRESS)
        for name in names
    )
    fleet = FleetStatus("demo", "gce", hosts, replace(JOB, tasks=tasks))
    lines = render_status([fleet], now=NOW, height=24).splitlines()
    assert len(lines) < 24
    assert sum(line.startswith("  worker-30  no answer") for line in lines) == 1
    assert sum(line.startswith("  worker-29  slow") for line in lines) == 1
    assert [line for line in lines if "more" in line] == ["  … and 25 more ready", "  … and 25 more running"]
    assert len(render_status([fleet], now=NOW).splitlines()) > 64


def test_print_status_for_people_and_programs() -> None:
    for wanted in (False, True):
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, "ascii")
        print_status([FLEET, FLEET], stream, json=wanted)
        lines = raw.getvalue().decode().splitlines()
        if wanted:
            assert [json.loads(line)["event"] for line in lines] == ["schema", "fleet_status", "fleet_status"]
        else:
            assert lines[0].startswith("demo  gce")


def test_watching_draws_in_place_until_ctrl_c() -> None:
    screen, pauses = Screen(100, 24), iter([None, None, KeyboardInterrupt()])

    def pause(seconds: float) -> None:
        error = next(pauses)
        if error:
            raise error

    watch_status(lambda: [FLEET], screen.file, size=screen.read_size, pause=pause)
    lines = screen.plain
    assert sum(line.startswith("demo  gce, 2 hosts") for line in lines) == 1
    assert lines[-1] == ""
    assert screen.text.endswith("\x1b[?25h")


def test_a_job_that_takes_in_hosts_shows_its_limit_and_who_joins() -> None:
    tasks = (*TASKS, TaskStatus("", "worker-2", alive=True))
    growing = replace(JOB, tasks=tasks, max_workers=4, joining=("worker-2",))
    lines = render_status([replace(FLEET, job=growing)], now=NOW).splitlines()
    assert "  2 of at most 4 workers; worker-2 joins at the next checkpoint" in lines
    assert lines[-1] == "  worker-2  joining"
    assert "at most" not in render_status([replace(FLEET, job=replace(growing, result=FAILED))], now=NOW)
