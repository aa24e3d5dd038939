"""An agent that does as a test says, started in place of the real one."""

from __future__ import annotations

import base64
import shlex

from train.pack import FAILED, TOO_OLD, WANT_AGENT, AgentArchive

_PRELUDE = '''
import base64, json, os, sys, time
raw_in, raw_out = sys.stdin.buffer, sys.stdout.buffer
def say(record, data=b"", **fields):
    line = json.dumps({"record": record, **fields}).encode() + b"\\n"
    raw_out.write(line + data)
    raw_out.flush()
def hear():
    line = raw_in.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)
def is_new(mark):
    """Make a file; false if there was one."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
def stay():
    """Say nothing more until the connection ends."""
    while True:
        hear()
def hello():
    say("hello", agent="scripted", python="3", pid=os.getpid())
'''

COLLECT = """
hello()
hear()
say("want", objects=WANTED, size=SIZE)
import hashlib, zlib
inflate, digest = zlib.decompressobj(), hashlib.sha256()
while True:
    size = hear()["payload"]
    if not size:
        break
    digest.update(inflate.decompress(raw_in.read(size)))
say("prepared", member=dict(slot="worker-0", task="", address="a", port=1, link_port=2), python="p",
    versions={"sha": digest.hexdigest()}, gpus=[], disk_free=1, memory_total=1, hostname="h", workdir="w")
"""


class Scripted:
    """Takes the place of train.pack in fleet.remote.channel.

    Args:
        body: Python that runs on the host, after a few lines that let it say and hear records.
        values: Names that it finds defined. STOPS of FOLLOW and FOLLOW_ATTEMPTS: offsets in the log (by attempt);
            after the first piece beyond each it says nothing more until its connection ends.
    """

    def __init__(self, body: str, **values: object) -> None:
        settings = "".join(f"{name} = {value!r}\n" for name, value in {"STOPS": {}, **values}.items())
        self._source = _PRELUDE + settings + body

    WANT_AGENT = WANT_AGENT
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
    wish = hear()
    with open(LOG, "rb") as file:
        data = file.read()
    at = wish["log_offset"]
    say("task_state", slot=wish["slot"], task=wish["slot"], attempt=1, phase="running", at=1.0, pid=7)
    told = 0
    while at < len(data):
        piece = data[at : at + PIECE]
        stays = any([at > stop and is_new(f"{LOG}.{stop}") for stop in STOPS])
        say("log", piece, slot=wish["slot"], task=wish["slot"], attempt=1, offset=at, payload=len(piece))
        at += len(piece)
        told += len(piece)
        if stays:
            stay()
        if PAUSE:
            time.sleep(PAUSE)
        if told % (7 * PIECE) == 0:
            say("beat", at=1.5, record_offset=50, log_offset=at, attempt=1)
    say("job_result", job=wish["job"], attempt=1, outcome="succeeded", at=2.0)
    say("end")
"""

# Attempt by attempt, those of LOGS; PIECE bytes at a time, with a beat after every third piece.
FOLLOW_ATTEMPTS = """
hello()
wish = hear()
mine = dict(slot=wish["slot"], task=wish["slot"])
for attempt in sorted(LOGS):
    if attempt < wish["attempt"]:
        continue
    asked = attempt == wish["attempt"]
    with open(LOGS[attempt], "rb") as file:
        data = file.read()
    at = wish["log_offset"] if asked else 0
    told = wish["record_offset"] if asked else 0
    if told < 10:
        say("task_state", **mine, attempt=attempt, phase="running", at=10.0 * attempt, pid=7)
    say("progress", slot=wish["slot"], task=wish["slot"], attempt=max(LOGS), at=time.time())
    pieces = 0
    while at < len(data):
        piece = data[at : at + PIECE]
        stays = any([at > stop and is_new(f"{LOGS[attempt]}.{stop}") for stop in STOPS.get(attempt, ())])
        say("log", piece, slot=wish["slot"], task=wish["slot"], attempt=attempt, offset=at, payload=len(piece))
        at += len(piece)
        pieces += 1
        if stays:
            stay()
        if PAUSE:
            time.sleep(PAUSE)
        if pieces % 3 == 0:
            say("beat", at=1.5, record_offset=10, log_offset=at, attempt=attempt)
    if told < 20:
        say("task_state", **mine, attempt=attempt, phase="exited", at=10.0 * attempt + 5, pid=7)
    if attempt != max(LOGS):
        say("attempt_ended", slot=wish["slot"], attempt=attempt, at=10.0 * attempt + 6, first_failed_task="",
            reason="", exits={}, retry_s=0.1)
    say("beat", at=1.5, record_offset=20, log_offset=at, attempt=attempt)
say("job_result", job=wish["job"], attempt=max(LOGS), outcome=OUTCOME, at=2.0, isolated=ALONE)
say("end")
hear()
"""

# The first host reports that its supervisor does not answer; the other one reports an end, OUTCOME, and whether it
# was ALONE.
UNHEARD = """
hello()
wish = hear()
say("task_state", slot=wish["slot"], task=wish["slot"], attempt=1, phase="running", at=1.0, pid=7)
while wish["slot"] == "worker-0":
    say("beat", at=time.time(), attempt=1, unheard_s=61.0)
    time.sleep(0.05)
say("job_result", job=wish["job"], attempt=1, outcome=OUTCOME, at=2.0, isolated=ALONE)
say("end")
"""
