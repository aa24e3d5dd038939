"""Screens of the live console, `fleet status`, reports, and messages, as users see them; screens.txt has the texts.

After a change: python -m tests.unit.fleet.console.screens, then read the difference as a user would.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

from fleet import events as ev
from fleet.console.frame import make_frame
from fleet.console.messages import describe_event, format_plan
from fleet.console.reports import format_report
from fleet.console.status import render_status
from fleet.console.tables import render
from tests.unit.fleet.console.samples import (
    ENDED,
    HANG_INSPECTION,
    HOSTS_CHECKED,
    ONE_OF_EACH,
    ORPHAN,
    PLACE,
    QUOTED,
    START,
    STORED,
    after,
    exited,
    names,
    opened,
    running,
    started,
)
from train.diagnosis.verdict import Cause, Verdict

FILE = Path(__file__).with_name("screens.txt")
TRAINING = [opened(2, price=0.7), started(2), *running(2)]
RETRY = [started(3, spares=1, attempts=4), *running(2), exited("worker-1", signal=9), ENDED._replace(retry_s=760.0)]
GONE = ev.ConnectionLost("worker-1", "timed out", 2.0)


def state(task: str, phase: ev.Phase, attempt: int = 1, slot: str = "", **fields: object) -> ev.TaskState:
    return ev.TaskState(slot or task, task, attempt, phase, START, **fields)  # type: ignore[arg-type]


def at(task: str, step: int, steps: int = 1200, **fields: object) -> ev.Progress:
    return ev.Progress(task, task, 1, START, 2, 5, step, steps, **fields)  # type: ignore[arg-type]


ROLES = ev.JobStarted(
    "j", "task.py", 1,
    tuple(
        ev.Member(f"worker-{slot}", task, "127.0.0.2", f"127.0.0.2:{2222 + slot}")
        for slot, task in enumerate(("chief-0", "worker-0", "ps-0", ""))
    ),
    START,
)  # fmt: skip
AT_ALL_WIDTHS = ("training", "GPUs and metrics", "preparation", "between two epochs", "a failure")
FORTY = [opened(40), started(40), *running(40)]
DELETED = ev.InstanceChanged("worker-1", "deleted", done=True)
RESULT = ev.JobResult("j-1", 1, ev.Outcome.SUCCEEDED, START)
LONG_REASON = "worker-1 raised ValueError: shapes (3, 4) and (5, 6) do not match, which no user could foresee at all"
FRAMES: dict[str, Sequence[ev.Event]] = {
    "training": TRAINING,
    "a price that changed": [*TRAINING, ev.PriceChanged("demo", 1.4, 2.0)],
    "only a quote": [QUOTED],
    "the zone of a request": [QUOTED, ev.ZoneTried("us-central1", "requesting 2 instances")],
    "instances": [
        ev.InstanceChanged("worker-0", "ready", done=True), ev.InstanceChanged("worker-1", "starting sshd"),
    ],
    "preparation": [
        ev.BootstrapProgress("worker-0", "downloading packages", "a.whl", 1, 4),
        ev.BootstrapProgress("worker-1", "waiting for the NVIDIA driver", "No devices were found"),
        ev.BootstrapProgress("worker-2", "ready", "Python 3.12.3", done=True),
    ],
    "a push": [opened(2), ev.PushProgress("worker-0", 2**20, 2**22, 12), ev.PushProgress("worker-1", 0, 2**22, 12)],
    "a pull": [opened(2), ev.PullProgress("worker-0", 2**20, 2**22, 12), ev.PullProgress("worker-1", 0, 0, 0)],
    "prepared": [opened(1), ev.TaskPrepared("worker-0", "10.0.0.2:2222")],
    "queued": [opened(2), ev.JobQueued("j-2", "task.py", "j-1", started(2).members, START)],
    "before the first step": [
        opened(2), started(2), *(state(name, ev.Phase.RUNNING) for name in names(2)),
        ev.Progress("worker-0", "worker-0", 1, activity="importing tensorflow"),
    ],
    "between two epochs": [*TRAINING, *(at(name, 22, 22) for name in names(2))],
    "the others wait": [
        *TRAINING,
        *(
            at(name, 9, steps_per_s=8.0, step_s=0.125, python_s=busy_s)
            for name, busy_s in zip(names(2), (0.086, 0.02), strict=True)
        ),
        ev.TaskAwaited("worker-0", 1, "python", 0.086, 0.125),
    ],
    "GPUs and metrics": [
        *TRAINING,
        *(ev.Usage(name, name, START, 1580.0, 12 * 2**30, (ev.GpuUse(0, 100.0, 81_559),)) for name in names(2)),
        *(at(name, 1000, metrics={"loss": 123456.0, "mae": 3.0, "val_loss": 1.0}) for name in names(2)),
    ],
    "metrics outlive a report without them": [*TRAINING, at("worker-0", 841, metrics={"loss": 0.2})],
    "an earlier attempt is ignored": [*TRAINING, state("worker-0", ev.Phase.WAITING, 2), at("worker-1", 999)],
    "between two attempts": RETRY,
    "the next attempt starts soon": [*RETRY[:-1], ENDED],
    "a spare takes over": [*RETRY, state("worker-1", ev.Phase.RUNNING, 2, "worker-2")],
    "a lost host": [
        opened(2), GONE, *TRAINING[1:], GONE._replace(host="worker-0"), ev.ConnectionRestored("worker-0"),
    ],
    "a connection in time": [opened(2), GONE, ev.HostConnected("worker-1", "10.0.0.3")],
    "forty tasks": FORTY,
    "what needs attention": [
        *FORTY, exited("worker-35", code=3), GONE._replace(host="worker-39"), at("worker-37", 840, steps_per_s=1.0),
    ],
    "folded states": [*FORTY, *(exited(name, code=0) for name in names(40)[30:])],
    "a failure": [
        *TRAINING, exited("worker-1", code=1), exited("worker-0", signal=15),
        ev.JobResult("j-1", 1, ev.Outcome.FAILED, START, "worker-1", LONG_REASON, {"worker-1": ev.Exit(code=1)}),
    ],
    "control characters": [started(1), ev.JobResult("j", 1, ev.Outcome.FAILED, START, "", "bad\x1b[2J\x1b]0;a\x07")],
    "a success": [*TRAINING, *(exited(name, code=0) for name in names(2)), RESULT],
    "task types": [
        ev.FleetOpened("demo", "local", names(4), 1.0, 0.0), ROLES, ev.ConnectionLost("worker-0", "gone", 1.0),
    ],
    "a parameter server after the success": [
        ROLES, state("chief-0", ev.Phase.EXITED, slot="worker-0", exit=ev.Exit(0)),
        state("ps-0", ev.Phase.EXITED, slot="worker-2", exit=ev.Exit(None, 15)), RESULT,
    ],
    "a deletion": [*TRAINING, ev.InstanceChanged("worker-0", "deleting"), DELETED],
    "deleted": [DELETED, ev.FleetDown("demo", names(2), 0, 0.0, 1.0)],
    "a smaller fleet": [opened(2), DELETED, opened(1), ev.FleetResized("demo", 1, (), ("worker-1",), 0.0, 0.0)],
}  # fmt: skip

HOSTS = (
    ev.HostStatus("worker-0", "127.0.0.2", 22001, True, "", 180.0, 1_234_567_890),
    ev.HostStatus("worker-1", "127.0.0.3", 22002, False, "timed out"),
)
PROGRESS = ev.Progress("worker-0", "worker-0", 1, START, 2, 5, 84, 120, {"accuracy": 0.9, "loss": 0.85}, 12.3)
TASKS = (
    ev.TaskStatus("worker-0", "worker-0", ev.Phase.RUNNING, True, progress=PROGRESS),
    ev.TaskStatus("worker-1", "worker-1"),
)
JOB = ev.JobStatus("20260102-101112-ab3d", "task.py", 1, START - 500, TASKS)
FLEET = ev.FleetStatus("demo", "gce", HOSTS, JOB, 0.7, START - 4000, START + 3600, 0.78)
DISKS = tuple(host._replace(disk_free=(9 - 8 * at) << 30, disk_total=100 << 30) for at, host in enumerate(HOSTS))
STORED_JOBS = tuple(
    ev.StoredStatus(f"j-{number}", 1 << (30 - number), "no" if number else "yes") for number in range(3)
)
FAILED = ev.JobResult("j", 2, ev.Outcome.FAILED, START - 440, "worker-1", "worker-1 ran out of memory")
ENDS = (
    ev.TaskStatus("worker-0", "worker-0", ev.Phase.EXITED, exit=ev.Exit(None, 15)),
    ev.TaskStatus("worker-1", "worker-2", ev.Phase.EXITED, exit=ev.Exit(3)),
)
SPARE = ev.TaskStatus("", "worker-1", ev.Phase.WAITING, alive=True)
UNFINISHED = "fleet up has not finished; repeat `fleet up --fleet demo`, or delete it with `fleet down --fleet demo`"
VERDICT = Verdict("worker-1", Cause.SCRIPT_EXCEPTION, "worker-1 raised ValueError: " + "no such thing " * 9)
JOINING = ev.TaskStatus("", "worker-2", alive=True)
GROWING = JOB._replace(tasks=(*TASKS, JOINING), max_workers=4, joining=("worker-2",))
MANY = tuple(ev.HostStatus(name, "127.0.0.2", 1, name != "worker-30", "timed out") for name in names(32))
LATE = {"worker-29": PROGRESS._replace(step=2, steps_per_s=1.0)}
SLOW = tuple(
    ev.TaskStatus(name, name, ev.Phase.RUNNING, True, progress=LATE.get(name, PROGRESS)) for name in names(32)
)


def at_end(job: ev.JobStatus) -> ev.FleetStatus:
    return ev.FleetStatus("demo", "local", HOSTS[:1], job)


FLEETS: dict[str, ev.FleetStatus] = {
    "at work": FLEET,
    "a long name and a limit": FLEET._replace(name="resnet-imagenet-large", max_cost_usd=250.0, cost_usd=120.5),
    "not finished": ev.FleetStatus("demo", "gce", (ev.HostStatus(ev.UNREADY, "", 0, False, UNFINISHED),)),
    "idle": ev.FleetStatus("demo", "local", HOSTS[:1]),
    "no hosts": ev.FleetStatus("demo", "local"),
    "one reason of several hosts": ev.FleetStatus("demo", "gce", (
        *(ev.HostStatus(name, "10.0.0.2", 22, False, f"{name} was deleted at 12:00") for name in names(4)),
        ev.HostStatus("worker-4", "10.0.0.6", 22, False, "evil\x1b[2J"),
    )),
    "a full disk": ev.FleetStatus("demo", "local", DISKS, stored=STORED_JOBS),
    "results that are not pulled": ev.FleetStatus(
        "demo", "gce", DISKS[:1], stored=STORED_JOBS, delete_at=START + 2400
    ),
    "a failed job": at_end(ev.JobStatus("j", "task.py", 2, START - 500, ENDS, FAILED)),
    "a diagnosed job": at_end(ev.JobStatus("j", "task.py", 1, START, result=FAILED, verdict=VERDICT)),
    "between two attempts": at_end(
        ev.JobStatus("j", "task.py", 2, START - 5, (*ENDS, SPARE), attempts=4, waits=True)
    ),
    "a task without a supervisor": at_end(ev.JobStatus("j", "t.py", 1, START, (TASKS[0]._replace(alive=False),))),
    "a job that takes in hosts": FLEET._replace(job=GROWING),
    "after the success": at_end(ev.JobStatus("j", "task.py", 1, START, ENDS, RESULT)),
    "many hosts": FLEET._replace(hosts=MANY, job=JOB._replace(tasks=SLOW)),
}  # fmt: skip

MEMBERS = started(3).members
WORKER_FAILED = ev.JobResult("j", 1, ev.Outcome.FAILED, 1.0, "worker-1", "", {"worker-1": ev.Exit(3)})
HUNG = ev.JobDiagnosed("j", "worker-1", "hang", "worker-1 hung")
DOWN = ev.FleetDown("demo", ("a", "b"), 0, 0.14, 732.0)
HERE, UNCHANGED = ev.PushedHost("worker-0", "/d", 1), ev.PushedHost("worker-2", "/d", 0)
VARIED = (ev.FleetOpened, ev.JobStarted, ev.TaskState, ev.JobResult, ev.Note)
MESSAGES: list[ev.Event] = [
    ev.Note("something"), ev.Note("something", ev.Level.WARNING), ev.Note("a\x1b[2J\nerror: b\x07"),
    ev.FleetOpened("demo", "local", ("worker-0",), 1.0, 0.0),
    ev.FleetOpened("demo", "gce", names(4), 1.0, 0.7, tasks_per_host=2),
    ev.InstanceChanged("worker-0", "starting sshd"),
    ev.PushProgress("worker-0", 1, 2, 3), ev.PushProgress("worker-0", 0, 0, 0),
    ev.PushProgress("worker-0", 2048, 2048, 1),
    ev.FilesPushed("demo", 3, 2048, (HERE, HERE._replace(host="worker-1"), UNCHANGED)),
    ev.TaskPrepared("worker-0", "h:1"),
    ev.JobStarted("j", "task.py", 1, MEMBERS, 1.0), ev.JobStarted("j", "task.py", 2, MEMBERS, 1.0, True),
    ev.JobStarted("j", "-m pkg.task", 1, MEMBERS, 1.0, True, ended=True), ROLES,
    ev.ConnectionLost("worker-0", "timed out", 0.2), ev.ConnectionLost("worker-0", "timed out", 0.0),
    DOWN, DOWN._replace(max_cost_usd=5.0), DOWN._replace(external=True), DOWN._replace(external=True, left=1),
    DOWN._replace(rented=False, cost_usd=0.0), DOWN._replace(left=1),
    state("worker-0", ev.Phase.RUNNING), state("worker-1", ev.Phase.RUNNING, 2, "worker-2"),
    state("worker-0", ev.Phase.RUNNING, cold="the job has secrets"), state("worker-0", ev.Phase.RUNNING, cold=""),
    state("worker-0", ev.Phase.EXITED, exit=ev.Exit(3), reason="why"),
    state("worker-0", ev.Phase.EXITED, exit=ev.Exit(None, 9)),
    ENDED, ENDED._replace(reason="", attempt=2, retry_s=90.0, attempts=0),
    ENDED._replace(reason="no way\nno disk", retry_s=0.0), ENDED._replace(preempted=True),
    HANG_INSPECTION, HANG_INSPECTION._replace(state="", activity="worker-1 has ended"),
    HUNG, HUNG._replace(final=False),
    ev.TaskAwaited("worker-1", 1, "input", 0.21, 0.23),
    *(RESULT._replace(outcome=outcome) for outcome in ev.Outcome),
    RESULT._replace(outcome=ev.Outcome.FAILED, reason="why"),
    *(WORKER_FAILED._replace(reason=reason) for reason in ("", "out of memory", "worker-1 was killed for memory")),
    *(event for event in ONE_OF_EACH if not isinstance(event, VARIED)),
]  # fmt: skip

RECENT = START - 7200
RUN = STORED._replace(
    name="baseline",
    arguments=("--epochs", "5", "--learning-rate", "0.001", "--batch", "64"),
    duration_s=75.0,
    metrics={"loss": 0.34, "val_loss": 0.5, "val_accuracy": 0.9},
    steps_per_s=12.3,
    code_sha256="3f2a" * 16,
    versions={"tensorflow": "2.21.0"},
    started_at=RECENT,
)
USED = ev.DiskUse("worker-0", 5 << 30, 100 << 30, 1_300_000)
PULLED = STORED._replace(job="20260101-101112-ab3d", pulled="yes", directory="/home/ann/results/x", state="")
OTHER_RUN = RUN._replace(job="20260101-101112-ab3d", name=None, arguments=("--epochs", "9"), metrics={"auc": 0.9})
ONE_PLACE = QUOTED._replace(offers=QUOTED.offers[:1], spot=False, delete_after_s=0, notes=(), project="", instances=1)
MINE = ORPHAN._replace(created_at=RECENT)
IMAGE = ORPHAN._replace(kind="image", name="fleet-9a3c", zone="", created_at=0.0, cost_usd=0.0, to_delete=False)
IMAGE = IMAGE._replace(price_usd_h=0.001, size_gb=14.6)
DISK = ORPHAN._replace(kind="disk", name="\x1b[2Jx", user="bob-desk", created_at=0.0, cost_usd=0.0, to_delete=False)
NO_API = f"the Compute Engine API is disabled in project {'x' * 30}"
PLAN = ev.TaskPlanned(
    "worker-0", "worker-0", "alpha", '{"a": 1}', "python task.py", {"B": "2", "A": "1", "TF_CONFIG": "x"}
)
FIX = "gcloud services enable compute.googleapis.com --project my-project-with-a-long-name"
REPORTS: dict[str, ev.Event] = {
    "a quote": QUOTED._replace(max_cost_usd=5.0, delete_after_s=2 * 3600, used_usd=1.5),
    "one zone on demand": ONE_PLACE,
    "flex start": ONE_PLACE._replace(flex_start=True, stop_after_s=3600),
    "orphans": ev.OrphansFound((MINE, DISK, IMAGE)),
    "no orphans": ev.OrphansFound(()),
    "a missing prerequisite": ev.Checked("gce", "api", False, NO_API, FIX, "or name another"),
    "a prerequisite": ev.Checked("gce", "api", True, "it is enabled", ""),
    "a check": HOSTS_CHECKED,
    "a check without problems": HOSTS_CHECKED._replace(hosts=HOSTS_CHECKED.hosts[:1], problems=(), warnings=()),
    "a smoke test": ev.SmokeTested("worker-0", False, "the script failed after 3 s", ("x" * 100, "\x1b[2Jno")),
    "jobs": ev.JobsListed("demo", (RUN, PULLED), (USED,), ("worker-1",)),
    "no jobs": ev.JobsListed("demo", (), ()),
    "compared jobs": ev.JobsCompared("demo", RUN, OTHER_RUN),
    "results at risk": ev.ResultsAtRisk("demo", (RUN._replace(paths=RUN.paths * 5),) * 5, ("worker-1",)),
    "results": ev.ResultsFound("demo", "j-1", 3, 2_000_000, (PLACE, PLACE._replace(files=13)), "fleet pull j-1"),
    "a finding": ONE_OF_EACH[-1],
    "a plan": PLAN,
    "a plan of a spare": PLAN._replace(task="", slot="worker-2", tf_config="", env={}),
}  # fmt: skip


def frame(shown: Sequence[ev.Event], width: int, **more: object) -> str:
    view = after(*shown)
    return render(make_frame(view, width=width, height=24, now=START + 754, **more), width)  # type: ignore[arg-type]


def report(event: ev.Event, width: int) -> str:
    """Return a report at the time `START`."""
    with mock.patch("time.time", return_value=START):
        return format_report(event, width)


def screens() -> dict[str, Callable[[], str]]:
    """Return each screen by its title, which ends with its width."""
    made: dict[str, Callable[[], str]] = {}
    for name, shown in FRAMES.items():
        for width in (40, 80, 160) if name in AT_ALL_WIDTHS else (80,):
            made[f"live, {name}: {width}"] = lambda shown=shown, width=width: frame(shown, width)  # type: ignore[misc]
    for name, fleet in FLEETS.items():
        for width in (40, 80) if name in ("at work", "not finished", "a diagnosed job") else (80,):
            made[f"status, {name}: {width}"] = lambda fleet=fleet, width=width: render_status(  # type: ignore[misc]
                [fleet], now=START, width=width, height=24
            )
    for name, event in REPORTS.items():
        for width in (50, 80):
            made[f"report, {name}: {width}"] = lambda event=event, width=width: report(event, width)  # type: ignore[misc]
    made["messages: 0"] = lambda: "".join(text + "\n" for event in MESSAGES if (text := describe_event(event)))
    made["plan in a pipe: 0"] = lambda: format_plan(ev.TaskPlanned("w", "w", "h", "{}" * 90, "python", {}))
    return made


def stored() -> dict[str, str]:
    """Return the expected screens."""
    parts = re.split(r"^=== (.*)\n", FILE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


if __name__ == "__main__":
    FILE.write_text("".join(f"=== {title}\n{make()}" for title, make in screens().items()))
