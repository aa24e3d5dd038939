"""Test the preemption of a host: how its agent detects it, and the effect on the job."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path

import pytest

from fleet.jobs.policy import preemption_notices
from tests.unit.train.agent.gang.test_gang import Play
from train.agent.gang import scheduling
from train.agent.gang.states import Stage
from train.agent.host.loop import Loop
from train.agent.protocol.records import Outcome, Policy, PreemptionNotice, ReasonKind
from train.agent.supervisor.preemption import Notices, NoticeWatch, PollTiming, find_notice, read_notices
from train.defaults import KILL_AFTER_PREEMPTION_S

# --- the metadata server ------------------------------------------------------------------------------------------


NOTICE = preemption_notices()[0]
PATH = "/computeMetadata/v1/instance/?recursive=true"


def notice_at(server: str) -> PreemptionNotice:
    return NOTICE._replace(url=f"http://{server}{PATH}")


def test_only_a_host_of_the_provider_polls_its_server(tmp_path: Path) -> None:
    product = tmp_path / "product_name"
    assert find_notice([NOTICE], {}, str(product)) is None
    product.write_text("Standard PC (Q35)\n")
    assert find_notice([NOTICE], {}, str(product)) is None
    product.write_text("Google Compute Engine\n")
    assert find_notice([NOTICE], {}, str(product)) == NOTICE
    other = find_notice([NOTICE], {"GCE_METADATA_HOST": "127.0.0.9:8080"}, str(product))
    assert other == notice_at("127.0.0.9:8080")


DATE = "Wed, 02 Dec 2026 10:00:00 GMT"
AT = 1796205600


@pytest.mark.parametrize(
    ("content", "notices"),
    [
        ('{"preempted": "FALSE", "attributes": {"fleet-end-at": "0"}}', Notices()),
        ('{"preempted": "TRUE"}', Notices(preempted=True)),
        (f'{{"preempted": "FALSE", "attributes": {{"fleet-end-at": "{AT + 90}"}}}}', Notices(end_in_s=90.0)),
        (f'{{"preempted": "TRUE", "attributes": {{"fleet-end-at": "{AT - 5}"}}}}', Notices(True, -5.0)),
        ('{"preempted": true, "attributes": {"fleet-end-at": "soon"}}', Notices()),
        (f'{{"attributes": {{"fleet-end-at": "{"9" * 400}"}}}}', Notices()),
        ('{"attributes": "none"}', Notices()),
        ("TRUE", Notices()),
        ("[" * 100_000, Notices()),
    ],
)
def test_the_notices_of_a_response_by_the_clock_of_its_server(content: str, notices: Notices) -> None:
    assert read_notices(NOTICE, DATE, content) == notices


def test_without_a_valid_time_of_the_server_the_clock_of_the_host_counts() -> None:
    content = f'{{"attributes": {{"fleet-end-at": "{round(time.time()) + 3600}"}}}}'
    assert read_notices(NOTICE, "soon", content).end_in_s == pytest.approx(3600, abs=90)


def answer(preempted: str, *, end_at: int = 0, etag: str = "e", status: str = "200 OK") -> bytes:
    body = f'{{"preempted": "{preempted}", "attributes": {{"fleet-end-at": "{end_at}"}}}}'
    head = f"HTTP/1.1 {status}\r\nMetadata-Flavor: Google\r\nETag: {etag}\r\nDate: {DATE}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


class Server:
    """Send the given answers, one a connection; None closes it, and later requests are not answered."""

    def __init__(self, answers: list[bytes | None]) -> None:
        self.asked: list[str] = []
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as connections:
            while True:
                connection = connections.enter_context(self._listener.accept()[0])
                if not (sent := connection.recv(4096).decode()):  # the client gave up first
                    continue
                self.asked.append(sent.split(" ")[1])
                given = self._answers.pop(0) if self._answers else b""
                if given is None:
                    connection.close()
                else:
                    connection.sendall(given)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)


def test_each_change_is_waited_for_and_a_server_that_is_away_for_a_while_is_asked_again() -> None:
    away = (None, answer("", status="503 Service Unavailable"), b"HTTP/1.1 200 OK\r\n", None) * 2
    end = answer("FALSE", end_at=AT + 60, etag="b2")
    server = Server([answer("FALSE", etag="a1"), end, *away, answer("TRUE", end_at=AT + 60, etag="c3")])
    loop, reports = Loop(), list[Notices]()
    timing = PollTiming(answer_s=0.5, poll_s=0, retry_s=0.01, longest_retry_s=0.02)  # one response never ends
    watch = NoticeWatch(loop, notice_at(server.place), reports.append, timing)
    deadline = time.monotonic() + 90.0
    while len(reports) < 3 or not server.asked[-1].endswith("last_etag=c3&timeout_sec=0"):
        assert time.monotonic() < deadline
        loop.after("look", 0.02, lambda: None)
        loop.turn()
    watch.close()
    loop.close()
    server.close()
    assert reports == [Notices(), Notices(end_in_s=60.0), Notices(True, 60.0)]
    assert server.asked[0] == PATH
    assert server.asked[1].endswith("last_etag=a1&timeout_sec=0")
    assert server.asked[2].endswith("last_etag=b2&timeout_sec=0")
    assert server.asked[3] == PATH  # the current value is requested first


# --- the gang -----------------------------------------------------------------------------------------------------

SPOT = Policy(preemptions=-1, backoff_s=1.0, host_timeout_s=1800.0)


def test_a_preemption_ends_the_attempt_at_once_with_grace_and_is_no_restart() -> None:
    play = Play(3, SPOT, grace_s=30.0).start()
    play.send_record("worker-1", preempted=True)
    significant_lines = scheduling.desired_state(play.gang)
    assert (significant_lines.stage, significant_lines.first_failed_slot, significant_lines.grace_s) == (
        Stage.STOP,
        "worker-1",
        KILL_AFTER_PREEMPTION_S,
    )
    assert significant_lines.reason == ("worker-1 (10.0.0.3) was preempted", ReasonKind.PREEMPTED)
    assert significant_lines.preempted
    assert significant_lines.notices == ["worker-1 is being preempted; the job continues when it is replaced"]
    play.close()
    assert play.at(Stage.WAIT)
    play.wait(100.0)  # it still answers, and gets nothing to do
    assert play.at(Stage.WAIT)
    play.lose("worker-1")
    play.wait(1000.0)
    assert play.at(Stage.WAIT)
    play.send_record("worker-1", preempted=False, attempt=0, exit=None, closed=True, address="10.0.0.9")
    play.wait(5.0)
    assert (play.gang.stage, play.gang.attempt) == (Stage.RESERVE, 2)
    assert (play.gang.restarts, play.gang.preemptions) == (0, 1)
    assert [member.address for member in scheduling.desired_state(play.gang).members] == [
        "10.0.0.2",
        "10.0.0.9",
        "10.0.0.4",
    ]


@pytest.mark.parametrize(
    ("count", "policy", "starts", "wait_s", "reason"),
    [
        (2, SPOT, True, 1800.0, "worker-1 (10.0.0.3) was preempted, and it was not replaced within 1800 s"),
        (2, Policy(), True, 0.0, "worker-1 (10.0.0.3) was preempted"),
        (1, SPOT, True, 0.0, "worker-0 (10.0.0.2) was preempted, and no other host is left"),
        (2, SPOT, False, 0.0, "worker-1 (10.0.0.3) was preempted"),
    ],
    ids=["not replaced", "not survived", "the last host", "before user code ran"],
)
def test_a_job_that_a_preemption_ends_says_so(
    count: int, policy: Policy, starts: bool, wait_s: float, reason: str
) -> None:
    play = Play(count, policy)
    play = play.start() if starts else play
    last = f"worker-{count - 1}"
    play.send_record(last, preempted=True)
    play.close()
    if wait_s:
        play.lose(last)
        play.wait(wait_s)
    assert (play.result.reason, play.result.outcome, play.result.started) == (reason, Outcome.FAILED, starts)
