"""Messages in their order, and errors; screens.txt has the messages of events."""

from __future__ import annotations

import io
import json

import pytest

from fleet import events
from fleet.console.jsonl import JsonSink
from fleet.console.messages import Activities, Reporter, format_error, print_error
from fleet.errors import NotFoundError, NotReadyError, UsageError
from fleet.events import BootstrapProgress, JobDiagnosed, JobStarted, Phase, PushProgress
from fleet.steps import Step
from tests.next_steps import next_lines
from tests.unit.fleet.console.samples import ENDED, started
from tests.unit.fleet.console.screens import state


def test_each_step_of_a_host_is_reported_once() -> None:
    reporter, messages = Reporter(), []
    for part in range(3):
        for host in ("worker-0", "worker-1"):
            messages.append(reporter.message(BootstrapProgress(host, "downloading packages", "a.whl", part, 2)))
            messages.append(reporter.message(PushProgress(host, 5 * part, 10, 1)))
    assert [message for message in messages if message] == [
        "worker-0: downloading packages (a.whl)",
        "worker-1: downloading packages (a.whl)",
        "worker-0: 1 file pushed, 10 B",
        "worker-1: 1 file pushed, 10 B",
    ]
    assert reporter.message(PushProgress("worker-1", 10, 10, 1)) == ""


def test_an_event_of_an_attempt_is_reported_once() -> None:
    reporter = Reporter()
    assert reporter.message(ENDED)
    killed = JobDiagnosed("j", "worker-1", "killed", "worker-1 (10.0.0.3) was killed by SIGKILL", final=False)
    assert reporter.message(killed) == ""
    assert reporter.message(killed._replace(attempt=2))
    assert reporter.message(killed._replace(message="worker-1 ran out of memory"))


def test_a_command_that_attaches_does_not_report_earlier_starts() -> None:
    reporter = Reporter()
    running = state("worker-0", Phase.RUNNING, 2)
    assert reporter.message(running)
    reporter.message(JobStarted("j", "task.py", 2, (), 1.0, attached=True))
    assert reporter.message(running) == reporter.message(running._replace(phase=Phase.WAITING)) == ""
    assert reporter.message(running._replace(phase=Phase.EXITED))
    assert reporter.message(running._replace(attempt=3))


def test_an_activity_is_reported_once_for_all_tasks_and_waiting_at_the_first() -> None:
    activities = Activities()
    activities.message(started(2))

    def message(task: str, activity: str | None, attempt: int = 1, step: int = -1) -> str:
        return activities.message(events.Progress("", task, attempt, step=step, activity=activity))

    importing, waiting = "importing tensorflow", "waiting for the other workers"
    for attempt in (1, 2):
        assert message("worker-0", importing, attempt) == ""
        assert message("worker-1", importing, attempt) == "worker-[0-1]: importing tensorflow"
        assert message("worker-0", importing, attempt) == ""
        assert message("worker-1", waiting, attempt) == "worker-1: waiting for the other workers"
        assert message("worker-0", waiting, attempt) == ""
    assert message("worker-0", "tracing", 1) == message("worker-1", "tracing", 1) == ""  # an earlier attempt
    message("worker-0", None, 2, step=1)
    assert message("worker-0", "tracing", 2) == message("worker-1", "tracing", 2) == ""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UsageError("the script task.py does not exist"), "error: the script task.py does not exist\n"),
        (
            NotFoundError("no fleet is up", cause="none was started", next_steps=[Step("up", "--workers", "2")]),
            "error: no fleet is up\ncause: none was started\nnext:  fleet up --workers 2\n",
        ),
        (
            NotReadyError("two hosts cannot run the job", cause="worker-0: disk full\nerror: busy\n"),
            "error: two hosts cannot run the job\ncause: worker-0: disk full\n       | error: busy\n",
        ),
        (
            UsageError("no room", hint="use a larger disk", next_steps=[Step("down"), Step("up")]),
            "error: no room\nhint:  use a larger disk\nnext:  fleet down\n       fleet up\n",
        ),
        (UsageError("bad\x1b[2J name"), "error: bad name\n"),
    ],
)
def test_error_text(error: UsageError, text: str) -> None:
    assert format_error(error, next_lines(error).splitlines()) == text


def test_colors_mark_the_labels_alone() -> None:
    text = format_error(UsageError("no"), ["fleet up"], color=True)
    assert text == "\x1b[1;31merror:\x1b[0m no\n\x1b[2mnext:\x1b[0m  fleet up\n"


def test_prose_is_wrapped_between_words_and_commands_are_not() -> None:
    error = UsageError(
        "worker-1 raised ModuleNotFoundError",
        cause="raised:\n  indented line of a traceback",
        next_steps=[Step("train", "--requirements", "requirements.txt", "task.py")],
    )
    assert format_error(error, next_lines(error).splitlines(), width=30).splitlines() == [
        "error: worker-1 raised",
        "       ModuleNotFoundError",
        "cause: raised:",
        "         indented line of a",
        "       traceback",
        "next:  fleet train --requirements requirements.txt task.py",
    ]


class Gone(io.BytesIO):
    def write(self, data: object) -> int:
        raise BrokenPipeError


def test_in_json_mode_both_streams_get_the_error_even_if_the_reader_of_the_json_has_ended() -> None:
    for out in (io.BytesIO(), Gone()):
        err = io.StringIO()
        print_error(NotFoundError("no fleet is up"), err, json=JsonSink(out))
        assert err.getvalue() == "error: no fleet is up\n"
        if not isinstance(out, Gone):
            assert json.loads(out.getvalue().splitlines()[-1])["kind"] == "not_found"
