"""Test the preemption of a worker's host, announced by the cloud, and its replacement, with stand-in tasks."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.hosts import FLEET, FaultFleet, FaultHost, fault_fleet

PORT = 8099
LINK = ("--link-timeout", "3", "--backoff", "0.1", "--host-timeout", "60", "--preemptions", "3")

# Counts; on SIGTERM the first by rank saves its count, and all exit with 42, as TensorFlow's handler does.
SCRIPT = """
import os, signal, sys, time
directory, attempt = os.environ["FLEET_CHECKPOINT_DIR"], int(os.environ["FLEET_ATTEMPT"])
path, notices = os.path.join(directory, "count"), []
signal.signal(signal.SIGTERM, lambda *_: notices.append(1))
step = int(open(path).read()) if os.path.exists(path) else 0
print(f"say begin {step}", flush=True)
last = 1000 if attempt == 1 else step + 10
while step < last and not notices:
    time.sleep(0.05)
    step += 1
    print(f"say step {step}", flush=True)
if notices:
    if os.environ["FLEET_RANK"] == "0":
        with open(path + ".tmp", "w") as file:
            file.write(str(step))
        os.replace(path + ".tmp", path)
        print(f"say saved {step}", flush=True)
    sys.exit(42)
print(f"say end {step}", flush=True)
"""

# The metadata server: TRUE while a file exists; a request that waits for a change is answered when the file exists.
METADATA = """
import http.server, os, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path, _, query = self.path.partition("?")
        if path != "/computeMetadata/v1/instance/" or self.headers["Metadata-Flavor"] != "Google":
            return self.send_error(403)
        wanted = dict(word.split("=") for word in query.split("&") if word)
        end = time.monotonic() + float(wanted.get("timeout_sec", 0))
        while wanted.get("wait_for_change") == "true" and self.value() == wanted["last_etag"]:
            time.sleep(0.02)
            if time.monotonic() > end:
                break
        body = ('{"preempted": "%s"}' % self.value()).encode()
        self.send_response(200)
        for name, value in (("Metadata-Flavor", "Google"), ("ETag", self.value()), ("Content-Length", len(body))):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)
    def value(self):
        return "TRUE" if os.path.exists(sys.argv[2]) else "FALSE"
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

# The part of `fleet up` that runs when the instance exists again.
REJOIN = """
import sys
from pathlib import Path
from fleet.fleets.repair import rejoin
from fleet.state import Store
class Sink:
    def emit(self, event): print(event)
directory, record = Store(Path(sys.argv[1])).need(sys.argv[2])
sys.exit(0 if rejoin(record, directory, Sink()) == [sys.argv[3]] else 1)
"""


@contextlib.contextmanager
def metadata_server(host: FaultHost, notice: Path) -> Iterator[None]:
    """Run a metadata server on the host, which reports a preemption while `notice` exists."""
    host.variables["GCE_METADATA_HOST"] = f"127.0.0.1:{PORT}"
    host.power_off()
    host.start()
    command = [*host.where.prefix, sys.executable, "-I", "-c", METADATA, str(PORT), str(notice)]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        server.kill()
        server.wait(60)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FaultFleet]:
    with fault_fleet(tmp_path, 2) as created:
        yield created


@pytest.mark.parametrize("number", [0, 1])
def test_a_job_continues_from_the_checkpoint_it_saved_at_the_notice(fleet: FaultFleet, number: int) -> None:
    """No restart is used and no client is connected; the last checkpoint leaves the chief's host in time."""
    host, notice = fleet.hosts[number], fleet.work / "preempted"
    with metadata_server(host, notice):
        job = fleet.train(SCRIPT, *LINK, "--grace", "10")
        job.wait_for_log(number, "say step 5")
        notice.touch()
        job.wait_for_record(1 - number, "attempt_ended", first_failed_task=host.name, preempted=True)
        saved = job.log(0).rpartition(b"say saved ")[2].decode().strip()
        job.saved_everywhere(lambda path: path.read_bytes() == saved.encode(), 1)
        job.client.kill()
        job.client.wait()
        fleet.kill_host(number)
        notice.unlink()
        shutil.rmtree(host.root / "jobs")  # the new instance has no files of the old one
        fleet.heal()
        rejoin(fleet, host.name)
        job.client, job.out, job.err = fleet.start("logs", "-f", "-o", "json")
        report = job.finish(0, 120)
    (ended,) = report.of("attempt_ended")
    assert (ended["first_failed_task"], ended["preempted"], ended["attempts"]) == (host.name, True, 4)
    assert ended["reason"] == f"{host.name} ({host.where.address}) was preempted"
    notes = [event["text"] for event in report.of("note")]
    assert f"{host.name} is being preempted; the job continues when it is replaced" in notes
    assert [report.values(member.name, 2, "begin") for member in fleet.hosts] == [[saved]] * 2
    assert report.result["attempt"] == 2
    job.nothing_is_left()


def rejoin(fleet: FaultFleet, name: str) -> None:
    command = [*fleet.laptop.prefix, sys.executable, "-c", REJOIN, str(fleet.state), FLEET, name]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
