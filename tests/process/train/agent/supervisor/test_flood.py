"""Test a task that writes faster than its agent can parse."""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile

import pytest

from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.hosts import Agent, Bundle, committed, follow
from train.agent.protocol.records import Follow, Outcome, Progress
from train.agent.supervisor import output
from train.agent.supervisor.output import ProgressQueue
from train.agent.supervisor.progress import ProgressParser
from train.pack import AgentArchive, build_agent

LINES = 20_000
MOST_BYTES = 1 << 16  # the agent keeps 1 MiB
FLOOD = f"""
import os
if os.environ["FLEET_RANK"] == "1":
    print("\\n".join(f"step {{n}} loss 0.5" for n in range({LINES})), flush=True)
    print("Epoch 9/9", flush=True)
"""
SLOWLY = b"""

import time
_quickly = ProgressParser._line

def _slowly(self, line, *, newline):
    time.sleep(0.002)
    _quickly(self, line, newline=newline)

ProgressParser._line = _slowly
"""


def slow_agent() -> AgentArchive:
    """The agent, as it is on a processor that takes two milliseconds to parse a line."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(build_agent().data)) as archive, zipfile.ZipFile(packed, "w") as slow:
        for name in archive.namelist():
            data = archive.read(name)
            slow.writestr(zipfile.ZipInfo(name), data + SLOWLY if name.endswith("supervisor/progress.py") else data)
    return AgentArchive(packed.getvalue(), hashlib.sha256(packed.getvalue()).hexdigest())


def test_heartbeats_go_on_while_a_flood_of_lines_is_parsed(connect: Connect) -> None:
    """Parsing all lines takes 40 s; the other agent waits 3 s for a message."""
    agents: list[Agent] = [connect(0), connect(1, archive=slow_agent())]
    committed(agents, "flood", Bundle(FLOOD), command=(sys.executable, "task.py"), link_timeout_s=3.0)
    story = follow(agents[1], Follow("flood", "worker-1", interval_s=0.1))
    assert story.result is not None
    assert story.result.outcome is Outcome.SUCCEEDED, story.result
    assert story.log == b"".join(b"step %d loss 0.5\n" % n for n in range(LINES)) + b"Epoch 9/9\n"
    newest = [record for record in story.records if isinstance(record, Progress)][-1]
    assert newest.epoch == 9  # the newest output is parsed, even if older output was skipped


class Recorder(ProgressParser):
    """Keeps what it is fed."""

    def __init__(self) -> None:
        super().__init__("worker-0", "worker-0", 1)
        self.fed = bytearray()

    def feed(self, data: bytes, at: float) -> list[Progress]:
        self.fed += data
        return super().feed(data, at)


def test_all_output_is_parsed_if_there_is_time() -> None:
    parser = Recorder()
    queue = ProgressQueue(parser)
    data = b"".join(b"Epoch: %d, loss: 0.5\n" % n for n in range(5000))
    for start in range(0, len(data), 7000):
        queue.put(data[start : start + 7000], 1.0)
    ends = []
    while queue.size:
        ends += queue.parse(0.0)
    assert bytes(parser.fed) == data
    assert [progress.epoch for progress in ends] == list(range(5000))


@pytest.mark.parametrize("piece", [1000, 4096, MOST_BYTES + 1])
def test_a_queue_keeps_the_newest_output_and_no_half_line(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MOST_WAITING", MOST_BYTES)
    parser = Recorder()
    queue = ProgressQueue(parser)
    data = b"".join(b"step %07d\n" % n for n in range(2 * MOST_BYTES // 13))
    for start in range(0, len(data), piece):
        queue.put(data[start : start + piece], 1.0)
        assert queue.size <= MOST_BYTES
    while queue.size:
        queue.parse()
    assert data.endswith(parser.fed)
    assert len(parser.fed) == MOST_BYTES
    assert parser.latest is not None
    assert parser.latest.step == 2 * MOST_BYTES // 13 - 1
