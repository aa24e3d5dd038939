"""Run the campaign `fuzz`: send arbitrary and damaged bytes to everything that reads from a network or a host."""

from __future__ import annotations

import contextlib
import itertools
import json
import resource
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

from fleet.console.jsonl import JsonSink
from fleet.console.messages import describe_event
from fleet.remote.publication import publish
from tests.ports import reserved_port
from tests.process.train.agent.peers.test_links import Net, joined
from tests.program import wait_for
from tests.soak.answers import fuzz_answers, fuzz_follow, fuzz_listings, fuzz_reports
from tests.soak.cases import Case
from tests.soak.mangler import Mangler, sample_records
from train.agent.checkpoints.snapshot import (
    PathItem,
    PathKind,
    Snapshot,
    SnapshotManifest,
    decode_manifest,
    digest_of,
    encode_manifest,
)
from train.agent.files.contents import Receiver, check_entries, unpack_block
from train.agent.gang.readiness import ReadinessFacts
from train.agent.gang.states import DesiredState, LeaderClaim, Message, SlotStatus, Source, Stage, from_wire, to_wire
from train.agent.protocol import records
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Entry, EntryKind, Exit, MalformedRecordError, Member, build, decode, encode
from train.agent.protocol.session import Credentials, LinkError, encode_message
from train.agent.protocol.strict_json import JsonError, parse_object
from train.rendezvous.contract import Participants
from train.rendezvous.tcp import join_tcp

GROWTH_MAX = 192 << 20  # bytes that a process may grow by
_SECRET = b"s" * 32

# --- functions that parse -----------------------------------------------------------------------------------------


_EVENTS = (
    records.TaskState,
    records.AttemptEnded,
    records.HangInspection,
    records.Progress,
    records.Usage,
    records.JobResult,
)


def fuzz_records(mangler: Mangler, rounds: int) -> None:
    """Decode damaged records of hosts; check that each is refused, or can be shown and encoded again."""
    samples = [encode(record) for record in sample_records()]
    for _ in range(rounds):
        line = mangler.damage(mangler.random.choice(samples)) if mangler.random.random() < 0.8 else mangler.anything()
        try:
            record = decode(line)
        except MalformedRecordError:
            continue
        encode(record)
        if isinstance(record, _EVENTS):
            event = publish(record)
            describe_event(event)
            JsonSink(BytesIO()).emit(event)


def fuzz_messages(mangler: Mangler, rounds: int) -> None:
    """Decode damaged messages of agents that have the secret."""
    member = Member("worker-1", "worker-1", "10.0.0.2", 2222, 4000)
    snapshot = Snapshot(1, 2, "d")
    order = DesiredState(1, "worker-0", 1, Stage.GO, [member], snapshot=snapshot)
    report = SlotStatus(
        "worker-1", probe_results={"worker-0": ""}, exit=Exit(1), facts=ReadinessFacts({"python": "3"}, ["T4"], 5)
    )
    messages: list[Message] = [order, report._replace(source=Source("a", 1)), LeaderClaim(1, "worker-0")]
    for _ in range(rounds):
        message: Message = mangler.random.choice(messages)
        with contextlib.suppress(MalformedRecordError, JsonError):
            values = parse_object(json.dumps(_deep(mangler, to_wire(message))).encode(), 1 << 20)
            heard = from_wire(values)
            if heard is not None:
                json.dumps(to_wire(heard)).encode()


def _deep(mangler: Mangler, values: dict[str, Any]) -> dict[str, Any]:
    (name,) = values
    return {name: mangler.change(values[name])}


def fuzz_manifests(mangler: Mangler, rounds: int) -> None:
    """Decode damaged manifests of checkpoints from other hosts."""
    items = [
        PathItem("a", PathKind.DIRECTORY, 0o755),
        PathItem("a/x", PathKind.FILE, 0o644, 5, 10**18, "0" * 64),
        PathItem("b", PathKind.LINK, 0o777, content="a/x"),
    ]
    whole = encode_manifest(SnapshotManifest(Snapshot(1, 1, digest_of(items)), "worker-0", "o", items))
    assert decode_manifest(whole).items == items
    for _ in range(rounds):
        data = mangler.damage(whole) if mangler.random.random() < 0.8 else mangler.anything()
        with contextlib.suppress(Exception):
            parts = json.loads(data)  # with a valid digest, as a hostile host would send it
            parts["snapshot"]["digest"] = digest_of([build(PathItem, row) for row in parts["items"]])
            data = json.dumps(parts).encode()
        with contextlib.suppress(ValueError):
            for item in decode_manifest(data).items:
                assert ".." not in item.path.split("/"), item
                assert not item.mode & ~0o777, item


def fuzz_bundles(mangler: Mangler, rounds: int, directory: str) -> None:
    """Decode damaged entries of bundles and the stream of their contents."""
    content = b"hello"
    entries = [
        Entry("a", EntryKind.DIRECTORY),
        Entry("a/x", EntryKind.FILE, size=5, sha256=sha256(content).hexdigest()),
    ]
    request = records.Prepare("j", "f", "worker-0", entries, "a")
    for _ in range(rounds):
        with contextlib.suppress(MalformedRecordError, RefusedError):
            changed = records.build(records.Prepare, _deep(mangler, {"p": records.to_dict(request)})["p"])
            check_entries(changed.entries)
        receiver = Receiver(directory, [(entries[1].sha256, 5)])
        with contextlib.suppress(RefusedError):
            receiver.feed(unpack_block(mangler.damage(zlib.compress(content)), len(content)))
            receiver.finish()
        receiver.close()


def fuzz_proofs(mangler: Mangler, rounds: int) -> None:
    """Send damaged lines to both sides of the handshake between agents."""
    for _ in range(rounds):
        chief = Credentials("job", _SECRET, "worker-0").chief_greeting()
        peer = Credentials("job", _SECRET, "worker-1").peer_greeting()
        lines = [peer.first()]
        with contextlib.suppress(LinkError):
            answer, _ = chief.take(_perhaps(mangler, lines[0]))
            proof, ours = peer.take(_perhaps(mangler, answer))
            _, theirs = chief.take(_perhaps(mangler, proof))
            assert theirs is not None
            for _ in range(3):
                theirs.open(_perhaps(mangler, ours.seal(encode_message({"beat": 1}))))


def _perhaps(mangler: Mangler, line: bytes) -> bytes:
    choice = mangler.random.random()
    return line if choice < 0.5 else mangler.damage(line) if choice < 0.85 else mangler.anything()


# --- processes that listen ----------------------------------------------------------------------------------------


def _say(mangler: Mangler, port: int, greeting: bytes) -> socket.socket:
    """Connect and send a few lines, some of them valid; return the open connection."""
    stranger = socket.create_connection(("127.0.0.1", port), timeout=10)
    with contextlib.suppress(OSError):
        for _ in range(mangler.random.randint(1, 3)):
            stranger.sendall(_perhaps(mangler, greeting))
    return stranger


def _hello(job: str, attempt: int, task: str) -> bytes:
    return Credentials(job, _SECRET, task, attempt).peer_greeting().first()


def fuzz_links(mangler: Mangler, rounds: int) -> None:
    """Send damaged lines to the link port of an agent; check that two valid agents stay connected."""
    net = Net()
    try:
        leader, _ = joined(net)
        for number in range(rounds):
            with _say(mangler, net.port("worker-0"), _hello("job", 0, "worker-1")):
                net.pass_time(0.003)
            if number % 50 == 49:
                leader.send("worker-1", encode_message({"number": number}))
                net.until(lambda number=number: net.count("message", "worker-1", "worker-0", {"number": number}) == 1)  # type: ignore[misc]
        leader.send("worker-1", encode_message({"last": 1}))
        net.until(lambda: net.count("message", "worker-1", "worker-0", {"last": 1}) == 1)
    finally:
        net.close()


def fuzz_rendezvous(mangler: Mangler, rounds: int) -> None:
    """Send damaged lines to rank 0 of a rendezvous; check that a participant then joins."""
    with reserved_port() as port, ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as held:
        first = pool.submit(join_tcp, "127.0.0.1", port, Participants(0, 2), "secret", 300)
        wait_for("rank 0", lambda: _is_open(port))
        for number in range(rounds):
            stranger = _say(mangler, port, _hello("rendezvous", 0, "1"))
            if number % 4:
                stranger.close()
            else:
                held.enter_context(stranger)
        second = join_tcp("127.0.0.1", port, Participants(1, 2), "secret", 60)
        values = pool.submit(first.result().gather, "hello", {}, 60)
        assert second.gather("hello", {}, 60) == values.result() == [{}, {}]
        first.result().close()
        second.close()


def _is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


# --- the campaign -------------------------------------------------------------------------------------------------

Target = Callable[[Mangler, int], None]
TARGETS: dict[str, tuple[Target, int]] = {  # with rounds of one pass
    "records": (fuzz_records, 3000),
    "messages": (fuzz_messages, 3000),
    "manifests": (fuzz_manifests, 2000),
    "answers of hosts": (fuzz_answers, 400),
    "followed hosts": (fuzz_follow, 40),
    "reports of hosts": (fuzz_reports, 120),
    "listings of hosts": (fuzz_listings, 80),
    "proofs": (fuzz_proofs, 600),
    "links": (fuzz_links, 80),
    "rendezvous": (fuzz_rendezvous, 150),
}


def passes(seed: int, minutes: float) -> Iterator[Case]:
    """Yield all targets, at least once and until the time is over, with a new seed for each pass."""
    until = time.monotonic() + 60 * minutes
    before = _memory_peak()
    for number in itertools.count(seed):
        for name, (target, rounds) in TARGETS.items():
            yield f"{name}, seed {number}", partial(_play, target, number, rounds, before)
        if time.monotonic() >= until:
            return


def _play(target: Target, seed: int, rounds: int, before: int, _: Path) -> None:
    target(Mangler(seed), rounds)
    grown = _memory_peak() - before
    assert grown < GROWTH_MAX, f"this process grew by {grown} bytes"


def _memory_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
