"""A scripted agent, started instead of the real one."""

from __future__ import annotations

import base64
import shlex

from train.pack import FAILED, NEED_AGENT, TOO_OLD, AgentArchive

_PRELUDE = '''
import base64, json, os, sys, time
raw_in, raw_out = sys.stdin.buffer, sys.stdout.buffer
def send(record, data=b"", **fields):
    line = json.dumps({"record": record, **fields}).encode() + b"\\n"
    raw_out.write(line + data)
    raw_out.flush()
def receive():
    line = raw_in.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)
def is_new(mark):
    """Create a file; return False if it exists."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
def wait_for_disconnect():
    """Send nothing more until the connection ends."""
    while True:
        receive()
def hello():
    send("hello", agent="scripted", python="3", pid=os.getpid())
'''

COLLECT = """
hello()
receive()
send("need_contents", objects=WANTED, size=SIZE)
import hashlib, zlib
digest = hashlib.sha256()
while True:
    chunk = receive()
    if not chunk["payload"]:
        break
    data = raw_in.read(chunk["payload"])
    digest.update(zlib.decompress(data) if chunk["size"] else data)
send("prepared", member=dict(slot="worker-0", task="", address="a", port=1, link_port=2), python="p",
    versions={"sha": digest.hexdigest()}, gpus=[], disk_free=1, memory_total=1, hostname="h", workdir="w")
"""


class Scripted:
    """Replaces train.pack in fleet.remote.ssh.transport.

    Args:
        body: Python that runs on the host, after the functions that send and receive records.
        values: Names that `body` can use. STOPS of FOLLOW and FOLLOW_ATTEMPTS: offsets in the log (by attempt);
            after the first piece beyond each offset it sends nothing more until its connection ends. GO of
            FOLLOW_ATTEMPTS: path of a file without which it sends no result.
    """

    def __init__(self, body: str, **values: object) -> None:
        settings = "".join(f"{name} = {value!r}\n" for name, value in {"STOPS": {}, "GO": "", **values}.items())
        self._source = _PRELUDE + settings + body

    NEED_AGENT = NEED_AGENT
    TOO_OLD = TOO_OLD
    FAILED = FAILED

    def bootstrap_command(self, python: str, root: str, digest: str, shared: str = "") -> str:
        coded = base64.b64encode(self._source.encode()).decode()
        return shlex.join([python, "-c", f"import base64; exec(base64.b64decode('{coded}'))"])

    def build_agent(self) -> AgentArchive:
        return AgentArchive(b"agent", "digest")


FOLLOW = """
hello()
while True:
    request = receive()
    with open(LOG, "rb") as file:
        data = file.read()
    at = request["log_offset"]
    send("task_state", slot=request["slot"], task=request["slot"], attempt=1, phase="running", at=1.0, pid=7)
    sent = 0
    while at < len(data):
        piece = data[at : at + PIECE]
        pauses = any([at > stop and is_new(f"{LOG}.{stop}") for stop in STOPS])
        send("log", piece, slot=request["slot"], task=request["slot"], attempt=1, offset=at, payload=len(piece))
        at += len(piece)
        sent += len(piece)
        if pauses:
            wait_for_disconnect()
        if PAUSE:
            time.sleep(PAUSE)
        if sent % (7 * PIECE) == 0:
            send("beat", at=1.5, record_offset=50, log_offset=at, attempt=1)
    send("job_result", job=request["job"], attempt=1, outcome="succeeded", at=2.0)
    send("end")
"""

# Sends the attempts of LOGS in order, PIECE bytes at a time, with a heartbeat after every third piece.
FOLLOW_ATTEMPTS = """
hello()
request = receive()
mine = dict(slot=request["slot"], task=request["slot"])
for attempt in sorted(LOGS):
    if attempt < request["attempt"]:
        continue
    is_requested = attempt == request["attempt"]
    with open(LOGS[attempt], "rb") as file:
        data = file.read()
    at = request["log_offset"] if is_requested else 0
    record_offset = request["record_offset"] if is_requested else 0
    if record_offset < 10:
        send("task_state", **mine, attempt=attempt, phase="running", at=10.0 * attempt, pid=7)
    send("progress", slot=request["slot"], task=request["slot"], attempt=max(LOGS), at=time.time())
    pieces = 0
    while at < len(data):
        piece = data[at : at + PIECE]
        pauses = any([at > stop and is_new(f"{LOGS[attempt]}.{stop}") for stop in STOPS.get(attempt, ())])
        send("log", piece, slot=request["slot"], task=request["slot"], attempt=attempt, offset=at, payload=len(piece))
        at += len(piece)
        pieces += 1
        if pauses:
            wait_for_disconnect()
        if PAUSE:
            time.sleep(PAUSE)
        if pieces % 3 == 0:
            send("beat", at=1.5, record_offset=10, log_offset=at, attempt=attempt)
    if record_offset < 20:
        send("task_state", **mine, attempt=attempt, phase="exited", at=10.0 * attempt + 5, pid=7)
    if attempt != max(LOGS):
        send("attempt_ended", slot=request["slot"], attempt=attempt, at=10.0 * attempt + 6, first_failed_task="",
            reason="", exits={}, retry_s=0.1)
    send("beat", at=1.5, record_offset=20, log_offset=at, attempt=attempt)
while GO and not os.path.exists(GO):
    time.sleep(0.01)
send("job_result", job=request["job"], attempt=max(LOGS), outcome=OUTCOME, at=2.0, isolated=ISOLATED)
send("end")
receive()
"""

# The first host reports that its supervisor does not answer; the other one reports the result OUTCOME, and whether it
# was isolated (ISOLATED).
SILENT_SUPERVISOR = """
hello()
request = receive()
send("task_state", slot=request["slot"], task=request["slot"], attempt=1, phase="running", at=1.0, pid=7)
while request["slot"] == "worker-0":
    send("beat", at=time.time(), attempt=1, unanswered_s=61.0)
    time.sleep(0.05)
send("job_result", job=request["job"], attempt=1, outcome=OUTCOME, at=2.0, isolated=ISOLATED)
send("end")
"""
