"""Events for the tests of sinks: one of every type, and those of a whole job."""

from __future__ import annotations

from fleet import events
from fleet.console.view import View
from fleet.events import Event, Exit, Member, Phase, TaskState
from provision.model import Offer
from train.lint.finding import Finding, Severity

START = 1_000_000.0

STACK = """Main thread (most recent call first):
  File "/usr/lib/python3.11/socket.py", line 718 in readinto
  File "/job/src/data.py", line 31 in fetch
  File "/job/src/task.py", line 12 in <module>

Thread 0x00007f0a12345700 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/usr/lib/python3.11/queue.py", line 180 in get
"""
HANG_INSPECTION = events.HangInspection(
    "worker-1",
    "worker-1",
    1,
    START,
    "S",
    STACK,
    ("10.0.0.3:2222 > 10.0.0.2:41234 ESTABLISHED 0 unsent 12 unread",),
    activity="worker-1 is in user code (data.py:31 in fetch)",
)
ENDED = events.AttemptEnded(
    "worker-0", 1, START, "worker-1", "worker-1 was killed by SIGKILL", {"worker-1": Exit(signal=9)}, 0.5, 4
)

FINDING = Finding(
    "MW405", "task.py", 12, 1, Severity.HINT, "nothing is kept", "it begins with the first epoch", "callbacks=[…]"
)

QUOTED = events.Quoted(
    fleet="demo",
    provider="gce",
    project="my-project",
    instances=2,
    offers=tuple(
        Offer(f"us-central1-{letter}", "n1-standard-4 + 1 nvidia-tesla-t4", None if letter == "b" else 0.54)
        for letter in "abcdefg"
    ),
    spot=True,
    priced_at="2026-11-01",
    delete_after_s=8 * 3600,
    notes=("The quota leaves room for 2 more.",),
    price_source="the Cloud Billing catalog",
)
ORPHAN = events.Orphan(
    provider="gce",
    kind="instance",
    name="demo-k3b7x2qa-worker-0",
    fleet="demo",
    owner="k3b7x2qa",
    user="ann-laptop",
    zone="us-central1-a",
    created_at=START,
    price_usd_h=0.54,
    cost_usd=1.08,
    to_delete=True,
)

HOSTS_CHECKED = events.HostsChecked(
    "demo",
    (
        events.HostFacts(
            "worker-0",
            "10.0.0.2",
            "/usr/bin/python3",
            {"python": "3.11.7", "tensorflow": "2.21.0", "keras": "3.15.1"},
            ("Tesla T4", "Tesla T4"),
            53_687_091_200,
            16_106_127_360,
            "x86_64",
            ("pandas",),
        ),
        events.HostFacts("worker-1", "10.0.0.3", problem="Rscript does not exist on this host"),
    ),
    ("worker-1: Rscript does not exist on this host", "task.py:3 imports pandas, which worker-0 lacks"),
    ("the hosts differ",),
)

PLACE = events.ResultLocation(
    "worker-0", "worker-0", "model", "/home/ann/.fleet/demo/jobs/j-1/worker-0/model", 2, 1_234_567
)
STORED = events.StoredResults(
    job="20260102-101112-ab3d",
    script="task.py",
    state="succeeded",
    started_at=START,
    size=1_300_000,
    pulled="no",
    directory="",
    paths=("worker-0:/home/ann/.fleet/demo/jobs/j-1/worker-0",),
    results=(PLACE,),
)
DISK = events.DiskUse("worker-0", 5 << 30, 100 << 30, 1_300_000)
ONE_OF_EACH: list[Event] = [
    events.JobsListed("demo", (STORED,), (DISK,), ("worker-1",)),
    events.JobsCompared("demo", STORED, STORED),
    events.ResultsAtRisk("demo", (STORED,), ("worker-1",)),
    events.JobsDeleted("demo", ("j-1",), 1_300_000, {"j-2": "it is running"}),
    events.ResultsFound("demo", "j-1", 2, 1_234_567, (PLACE,), "fleet pull j-1 --fleet demo"),
    events.PullProgress("worker-0", 10, 20, 2),
    events.ResultsPulled("demo", "j-1", "/home/ann/results/j-1", 2, 1_234_567, 1, 1_000, True),
    events.ReportWritten("j-1", "/home/ann/j-1.html", 48_000, "demo", "/home/ann/j-1.capsule.zip", 2_000),
    events.TensorboardStarted("j-1", "http://127.0.0.1:6006/", None, True),
    events.SshConfigChanged("/home/ann/.ssh/config", "Include /state/*/ssh_config", True, True, ("demo-worker-0",)),
    events.CommandOutput(("worker-0", "worker-1"), "stdout", b"Linux\n"),
    events.CommandResult(
        "demo", ("uname", "-s"), (events.HostResult("worker-0", 0), events.HostResult("worker-1", None, "is gone"))
    ),
    events.FilesPushed(
        "demo",
        2,
        5_200_000,
        (
            events.PushedHost("worker-0", "/home/ann/fleet-files", 1),
            events.PushedHost("worker-1", None, None, "is gone"),
        ),
    ),
    QUOTED,
    events.ZoneTried("us-central1-a", "no capacity"),
    events.ImageBaked("fleet-9a3c62e1b07d4f58", "my-project", 9.4, 0.47, created=True),
    events.OrphansFound((ORPHAN,)),
    events.OrphansDeleted(1, ()),
    HOSTS_CHECKED,
    events.SmokeTested("worker-0", False, "the script exited with code 1 after 3 s", ("ValueError: no such thing",)),
    events.Checked("gce", "credentials", False, "there are none", "gcloud auth application-default login"),
    events.JobDiagnosed(
        "j-1", "worker-0", "script-exception", "worker-0 raised ValueError", ("ValueError",), "task.py:1 in f"
    ),
    events.Note("a sentence"),
    events.FleetOpened("demo", "gce", ("worker-0", "worker-1"), START, 0.7, START + 7200),
    events.InstanceChanged("worker-0", "ready", done=True),
    events.HostConnected("worker-0", "10.0.0.2"),
    events.BootstrapProgress("worker-0", "downloading packages", "numpy.whl", 10, 20),
    events.PushProgress("worker-0", 10, 10, 2),
    events.TaskPrepared("worker-0", "10.0.0.2:2222", {"tensorflow": "2.21.0"}, ("T4", "T4")),
    events.TaskPlanned("worker-0", "worker-0", "10.0.0.2", "{}", "python task.py", {"A": "1"}),
    events.JobStarted("j-1", "task.py", 1, (Member("worker-0", "worker-0", "10.0.0.2", "10.0.0.2:2222"),), START),
    events.JobQueued("j-2", "task.py", "j-1", (Member("worker-0", "worker-0", "10.0.0.2", "10.0.0.2:2223"),), START),
    events.LogChunk("worker-0", "worker-0", 1, 0, b"text\n"),
    events.ConnectionLost("worker-0", "timed out", 2.0),
    events.ConnectionRestored("worker-0"),
    events.PriceChanged("demo", 1.4, 0.14),
    events.FleetResized("demo", 2, (), ("worker-2",), 0.14, 1.4),
    events.FleetDown("demo", ("worker-0",), 0, 0.14, 732.0),
    events.FleetStopped("demo", ("worker-0",), 0.02, 0.14),
    TaskState("worker-0", "worker-0", 1, Phase.RUNNING, START, 12),
    ENDED,
    HANG_INSPECTION,
    events.Progress("worker-0", "worker-0", 1, START, 1, 2, 3, 4, {"loss": 0.5}, 6.0),
    events.TaskAwaited("worker-1", 1, "input", 0.21, 0.23),
    events.Usage("worker-0", "worker-0", START, 120.0, 2**30, (events.GpuUse(0, 50.0, 1000),)),
    events.JobResult("j-1", 1, events.Outcome.FAILED, START, "worker-0", "", {"worker-0": Exit(code=3)}),
    FINDING,
]


def names(count: int) -> tuple[str, ...]:
    return tuple(f"worker-{index}" for index in range(count))


def opened(count: int, *, price: float = 0.0) -> events.FleetOpened:
    delete_at = START + 3600 if price else 0.0
    return events.FleetOpened("demo", "gce", names(count), START - 3600, price, delete_at, cost_usd=price)


def started(count: int, attempt: int = 1, *, spares: int = 0, attempts: int = 1) -> events.JobStarted:
    members = tuple(
        Member(name, name if number < count - spares else "", f"10.0.0.{number + 2}", f"10.0.0.{number + 2}:2222")
        for number, name in enumerate(names(count))
    )
    return events.JobStarted(
        "20260102-101112-ab3d",
        "custom_training_loop.py",
        attempt,
        members,
        START,
        attempts=attempts,
    )


def running(count: int, *, rate: float = 12.3) -> list[Event]:
    made: list[Event] = []
    for name in names(count):
        made += [
            TaskState(name, name, 1, Phase.RUNNING, START, 12),
            events.Progress(name, name, 1, START, 2, 5, 840, 1200, {"accuracy": 0.891, "loss": 0.3412}, rate),
            events.Usage(name, name, START, 180.0, 1_234_567_890),
        ]
    return made


def exited(name: str, *, code: int | None = None, signal: int | None = None, attempt: int = 1) -> TaskState:
    return TaskState(name, name, attempt, Phase.EXITED, START, 12, Exit(code, signal))


def after(*shown: Event, now: float = START) -> View:
    """Return the view after these events."""
    view = View()
    for event in shown:
        view.take(event, now)
    return view
