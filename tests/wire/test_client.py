from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.errors import NotReadyError, UnreachableError
from fleet.remote.client import AgentClient, RefusedError
from fleet.remote.ssh import transport as transport_module
from fleet.remote.ssh.transport import open_agent
from fleet.remote.upload import scan
from tests.next_steps import next_lines
from tests.wire.hosts import Hosts, Wire
from tests.wire.scripted import COLLECT, Scripted
from train import pack
from train.agent.protocol.records import Chunk, Commit, Entry, EntryKind, Inspect, Log, Prepare, Refused, Stop

pytestmark = pytest.mark.wire


@contextlib.contextmanager
def scripted(hosts: Hosts, monkeypatch: pytest.MonkeyPatch, body: str, **values: object) -> Iterator[AgentClient]:
    monkeypatch.setattr(transport_module, "pack", Scripted(body, **values))
    with open_agent(hosts.hosts[0], hosts.key) as client:
        yield client


def prepare_request(task: str = "worker-0", entries: list[Entry] | None = None) -> Prepare:
    return Prepare("job-1", "tests", task, entries or [], "127.0.0.1", python=sys.executable)


def ignore_progress(*_: int) -> None:
    return


# --- limits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [42_949_672_960, 1_048_577, -10, "zz", 1.5, True, None])
def test_a_payload_of_an_invalid_size_is_refused(hosts: Hosts, monkeypatch: pytest.MonkeyPatch, size: object) -> None:
    sent = "slot='worker-0', task='worker-0', attempt=1, offset=0, payload=SIZE"
    body = f"hello()\nreceive()\nsend('log', bytes(4096), {sent})\nreceive()"
    with scripted(hosts, monkeypatch, body, SIZE=size) as client, pytest.raises(NotReadyError, match="worker-0"):
        client.inspect(Inspect())


def test_more_reports_than_requested_are_refused(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    body = (
        "hello()\nreceive()\nfor number in range(5):\n"
        "    send('job_report', job='j', fleet='f', slot='t', task='', attempt=1, phase='running', alive=True,"
        " started_at=1.0, command=[], members=[], log_size=1)\nsend('end')\nreceive()"
    )
    with scripted(hosts, monkeypatch, body) as client, pytest.raises(NotReadyError, match="worker-0"):
        client.inspect(Inspect(3))


def test_a_line_that_comes_byte_by_byte_ends_at_the_deadline(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    body = (
        "hello()\nreceive()\n"
        "for _ in range(40):\n    raw_out.write(b' ')\n    raw_out.flush()\n    time.sleep(0.25)\n"
        "send('end')\nreceive()"
    )
    monkeypatch.setattr("fleet.remote.client.ANSWER_S", 1.0)
    with scripted(hosts, monkeypatch, body) as client, pytest.raises(UnreachableError, match="within 1 s"):
        client.inspect(Inspect())


# --- opening ----------------------------------------------------------------------------------------------------


def test_the_agent_is_uploaded_once_and_sends_hello(hosts: Hosts) -> None:
    for _ in range(2):
        with open_agent(hosts.hosts[0], hosts.key) as client:
            assert client.hello.agent == pack.build_agent().digest
            assert client.hello.pid > 0
            assert client.inspect(Inspect()) == []


def test_a_missing_python_is_named(hosts: Hosts) -> None:
    host = dataclasses.replace(hosts.hosts[0], python="/nowhere/python9")
    with pytest.raises(NotReadyError, match=r"^worker-0 \(.*\) has no /nowhere/python9 that runs$") as raised:
        open_agent(host, hosts.key)
    assert "Python 3.9" in raised.value.hint


@pytest.mark.parametrize(
    ("body", "message", "cause"),
    [
        ("print('python-too-old 3.6.8', flush=True)", "has Python 3.6.8 as", ""),
        ("print('bootstrap-failed disk full', flush=True)", "cannot keep the agent", "disk full"),
        ("sys.stderr.write('one\\nlast words\\n'); sys.exit(5)", "ended with exit code 5", "last words"),
        ("os.kill(os.getpid(), 9)", "ended without an exit code", ""),
        ("[print(i, flush=True) for i in range(1000)]; time.sleep(60)", "not a record of its agent", "'99'"),
        ("print('{', flush=True); hello(); receive(); send('committed', pid=1); receive()", "committed", ""),
    ],
)
def test_an_agent_that_does_not_start_or_answer_is_reported_with_its_output(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, body: str, message: str, cause: str
) -> None:
    with pytest.raises(NotReadyError, match=message) as raised, scripted(hosts, monkeypatch, body) as client:
        client.inspect(Inspect())  # an agent starts although its login shell has printed something
    assert cause in raised.value.cause


def test_waiting_for_a_silent_new_agent_ends_at_the_deadline(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "pack", Scripted("time.sleep(60)"))
    with pytest.raises(UnreachableError, match="did not answer within 1 s while the agent was being started"):
        open_agent(hosts.hosts[0], hosts.key, deadline_s=1)


# --- records and payloads ---------------------------------------------------------------------------------------

ECHO = """
hello()
raw_out.write(b"".join(b'{"record":"beat","at":%d}\\n' % i for i in range(5000)))
raw_out.flush()
while True:
    payload = raw_in.read(receive()["payload"])
    send("log", payload, slot="t", task="", attempt=1, offset=0, payload=len(payload))
"""


def test_records_in_one_packet_are_separated_and_payloads_return_unchanged(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(hosts, monkeypatch, ECHO) as client:
        numbers = [getattr(client.transport.receive(20, "counting")[0], "at", -1) for _ in range(5000)]
        assert numbers == list(range(5000))
        for size in (1, 0, 100, 32_704, 32_768, 262_144, 1_000_001):
            data = os.urandom(size)
            client.transport.send(Chunk(size), data, doing="sending")
            record, payload = client.transport.receive(20, "echoing")
            assert isinstance(record, Log)
            assert payload == data


def test_an_agent_that_dies_is_reported_with_its_last_output(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "hello()\nreceive()\nsys.stderr.write('x' * 100_000 + '\\nMemoryError\\n')\nsys.exit(1)"
    with scripted(hosts, monkeypatch, body) as client:
        client.transport.send(Inspect(), doing="asking")
        with pytest.raises(NotReadyError, match="ended with exit code 1 while reporting") as raised:
            client.transport.receive(20, "reporting")
        assert raised.value.cause == "MemoryError"


def test_waiting_ends_at_the_deadline_or_with_the_connection(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        scripted(hosts, monkeypatch, "hello()\nreceive()") as client,
        scripted(hosts, monkeypatch, "hello()\nreceive()") as late,
    ):
        with pytest.raises(UnreachableError, match=r"did not answer within 0\.5 s while waiting"):
            late.transport.receive(0.5, "waiting")
        hosts.kill_sessions(0)
        with pytest.raises(UnreachableError, match="while waiting"):
            client.transport.receive(20, "waiting")


# --- upload -------------------------------------------------------------------------------------------------------


def test_a_large_upload_arrives(hosts: Hosts, empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.urandom(1_000_000) * 8 + b"\0" * 8_000_000
    (empty / "data").write_bytes(data)
    seen: list[tuple[int, int, int]] = []
    bundle = scan(empty, None, [], empty.parent / "cache")
    wanted = [entry.sha256 for entry in bundle.entries]
    with scripted(hosts, monkeypatch, COLLECT, WANTED=wanted, SIZE=len(data)) as client:
        prepared = client.prepare(prepare_request(), bundle, lambda *now: seen.append(now))
    assert prepared.versions["sha"] == hashlib.sha256(data).hexdigest()
    assert seen[0] == (0, 16_000_000, 1)
    assert seen[-1] == (16_000_000, 16_000_000, 1)
    assert [sent for sent, _, _ in seen] == sorted(sent for sent, _, _ in seen)


@pytest.mark.parametrize("hangs", [True, False], ids=["the host hangs", "the network drops all packets"])
def test_an_upload_that_stalls_ends_at_the_deadline(
    hosts: Hosts, wire: Wire, empty: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    monkeypatch.setattr("fleet.remote.client.ANSWER_S", 1.0)
    (empty / "data").write_bytes(os.urandom(64_000_000))
    bundle = scan(empty, None, [], empty.parent / "cache")
    wanted = [entry.sha256 for entry in bundle.entries]
    monkeypatch.setattr(transport_module, "pack", Scripted(COLLECT, WANTED=wanted, SIZE=64_000_000))
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(open_agent(wire.host, hosts.key))
        stalled: list[int] = []

        def progress(sent: int, total: int, files: int) -> None:
            if sent > 10_000_000 and not stalled:
                stalled.append(sent)
                if hangs:
                    stack.enter_context(hosts.hung(0))
                else:
                    wire.hold()

        with pytest.raises(UnreachableError, match="did not answer within 1 s while receiving the script") as raised:
            client.prepare(prepare_request(), bundle, progress)
    assert "of 64.0 MB sent)" in raised.value.message


def test_a_refusal_during_the_upload_is_reported_with_its_reason(
    hosts: Hosts, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
hello(); receive()
send("need_contents", objects=WANTED, size=64000000)
raw_in.read(1000000)
send("refused", kind="disk", reason="no space left on this host", next_step="")
END
"""
    (empty / "data").write_bytes(os.urandom(64_000_000))
    bundle = scan(empty, None, [], empty.parent / "cache")
    for end in ("sys.exit(0)", "raw_in.read(); sys.exit(0)"):
        wanted = [entry.sha256 for entry in bundle.entries]
        with scripted(hosts, monkeypatch, body.replace("END", end), WANTED=wanted) as client:
            with pytest.raises(RefusedError, match="no space left on this host") as raised:
                client.prepare(prepare_request(), bundle, ignore_progress)
            assert "free space" in raised.value.hint


# --- the real agent ---------------------------------------------------------------------------------------------


def test_the_real_agent_prepares_starts_and_reports_a_task(hosts: Hosts, empty: Path) -> None:
    (empty / "task.py").write_text("print('hello from', __file__, flush=True)\nimport time\ntime.sleep(600)")
    (empty / os.fsdecode(b"caf\xe9")).write_text("x")
    (empty / "big").write_bytes(os.urandom(5_000_000))
    (empty / "link").symlink_to("task.py")
    bundle = scan(empty, empty / "task.py", [], empty.parent / "cache")
    with open_agent(hosts.hosts[0], hosts.key) as client:
        prepared = client.prepare(prepare_request(entries=bundle.entries), bundle, ignore_progress)
        assert Path(prepared.workdir, "big").read_bytes() == (empty / "big").read_bytes()
        assert Path(os.fsdecode(os.fsencode(prepared.workdir) + b"/caf\xe9")).read_text() == "x"
        assert Path(prepared.workdir, "link").readlink() == Path("task.py")
        with (
            open_agent(hosts.hosts[0], hosts.key) as other,
            pytest.raises(RefusedError, match="job job-1 is being prepared on this host"),
        ):
            other.prepare(prepare_request()._replace(job="job-2"), bundle, ignore_progress)
        request = Commit(
            "job-1",
            "worker-0",
            [prepared.member._replace(task="worker-0")],
            "00" * 32,
            [prepared.python, "task.py"],
            {},
            {},
            grace_s=1,
        )
        assert client.commit(request).pid > 0
    with open_agent(hosts.hosts[0], hosts.key) as client:
        (report,) = client.inspect(Inspect())
        assert (report.job, report.alive) == ("job-1", True)
        assert client.stop(Stop("job-1", "worker-0", 1.0)).running
        (report,) = client.inspect(Inspect())
        assert not report.alive

        seen: list[tuple[int, int, int]] = []
        again = prepare_request(entries=bundle.entries)._replace(job="job-3")
        client.prepare(again, bundle, lambda *now: seen.append(now))
        assert seen == [(0, 0, 0)]  # nothing is sent twice


def test_a_request_out_of_turn_is_refused(hosts: Hosts, empty: Path) -> None:
    with open_agent(hosts.hosts[1], hosts.key) as client:
        with pytest.raises(RefusedError, match="is not prepared on this host"):
            client.commit(Commit("job-1", "worker-0", [], "00", ["true"], {}, {}))
        bundle = scan(empty, None, [], empty.parent / "cache")
        odd = prepare_request(entries=[Entry("../x", EntryKind.DIRECTORY)])
        with pytest.raises(RefusedError, match="is not a path inside the working directory"):
            client.prepare(odd, bundle, ignore_progress)


def test_refusals_have_next_steps() -> None:
    from fleet.remote.client import refusal
    from provision.model import Host
    from train.agent.protocol.records import Refusal

    host = Host("worker-0", "h", 22, "me", "", "", "h")
    for kind in Refusal:
        error = refusal(host, Refused(kind, "why"))
        assert next_lines(error) or error.hint
        assert refusal(host, Refused(kind, "why", "do this")).hint == "worker-0 suggests: do this"
