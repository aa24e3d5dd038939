"""Test a task that writes faster than its agent can parse."""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile

from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.hosts import Agent, Bundle, committed, follow
from train.agent.protocol.records import Follow, Outcome, Progress
from train.pack import AgentArchive, build_agent

LINES = 20_000
FLOOD = f"""
import os
if os.environ["FLEET_RANK"] == "1":
    print("\\n".join(f"step {{n}} loss 0.5" for n in range({LINES})), flush=True)
    print("Epoch 9/9", flush=True)
"""
SLOWLY = b"""

import time
_quickly = ProgressParser.feed

def _slowly(self, data, at):
    time.sleep(0.002 * data.count(10))
    return _quickly(self, data, at)

ProgressParser.feed = _slowly
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
