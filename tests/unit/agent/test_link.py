"""The proof and the seal between agents, and the star of connections that carries them."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train.agent.link import ChiefGreeting, LinkError, Message, PeerGreeting, Session
from train.agent.loop import Loop
from train.agent.records import Member
from train.agent.star import Bond, ChiefEnd, PeerEnd

SECRET = b"s" * 32
NONCES = b"c" * 16, b"p" * 16


def meet(
    chief_secret: bytes = SECRET, peer_secret: bytes = SECRET, *, job: str = "job", attempt: int = 1
) -> tuple[Session, Session]:
    """The chief's and the peer's session."""
    chief = ChiefGreeting(chief_secret, "job", 1, NONCES[0])
    peer = PeerGreeting(peer_secret, job, attempt, "worker-1", NONCES[1])
    answer, nothing = chief.take(peer.first().rstrip())
    assert nothing is None
    proof, peers = peer.take(answer.rstrip())
    _, chiefs = chief.take(proof.rstrip())
    assert chiefs is not None
    assert chief.task == "worker-1"
    return chiefs, peers


def test_who_knows_the_secret_is_understood_in_both_directions() -> None:
    chief, peer = meet()
    for n in range(3):
        assert peer.open(chief.seal({"go": n}).rstrip(b"\n")) == {"go": n}
        assert chief.open(peer.seal({"exited": [n, "ü"]}).rstrip(b"\n")) == {"exited": [n, "ü"]}


def test_a_peer_with_another_secret_finds_that_the_chief_is_not_his() -> None:
    with pytest.raises(LinkError, match="does not know the job's secret"):
        meet(peer_secret=b"t" * 32)


def test_a_peer_that_skips_its_own_check_is_found_out_by_the_chief() -> None:
    chief = ChiefGreeting(SECRET, "job", 1, NONCES[0])
    chief.take(PeerGreeting(b"t" * 32, "job", 1, "worker-1", NONCES[1]).first())
    with pytest.raises(LinkError, match="does not know the job's secret"):
        chief.take(json.dumps({"proof": "0" * 64}).encode())


@pytest.mark.parametrize(("job", "attempt"), [("other", 1), ("job", 2)])
def test_another_job_or_attempt_is_turned_away(job: str, attempt: int) -> None:
    with pytest.raises(LinkError, match="another job or attempt"):
        meet(job=job, attempt=attempt)


def test_the_chiefs_proof_cannot_be_sent_back_to_him() -> None:
    chief = ChiefGreeting(SECRET, "job", 1, NONCES[0])
    answer, _ = chief.take(PeerGreeting(SECRET, "job", 1, "worker-1", NONCES[1]).first())
    with pytest.raises(LinkError):
        chief.take(json.dumps({"proof": json.loads(answer)["proof"]}).encode())


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"hello": 1, "nonce": "00"}',
        b'{"hello": ["job", 1, "w"]}',
        b'{"hello": ["job", 1, "w"], "nonce": "zz"}',
        b'{"hello": ["job", 1, "w"], "nonce": "00"}',
    ],
)
def test_a_greeting_that_is_none_is_refused(line: bytes) -> None:
    with pytest.raises(LinkError):
        ChiefGreeting(SECRET, "job", 1, NONCES[0]).take(line)


def test_replayed_reflected_reordered_and_changed_messages_are_refused() -> None:
    chief, peer = meet()
    first, second = (chief.seal({"go": n}).rstrip(b"\n") for n in range(2))
    with pytest.raises(LinkError):
        peer.open(second)
    with pytest.raises(LinkError):
        chief.open(first)
    assert peer.open(first) == {"go": 0}
    with pytest.raises(LinkError):
        peer.open(first)
    with pytest.raises(LinkError):
        peer.open(second.replace(b"go", b"no"))
    assert peer.open(second) == {"go": 1}
    other, _ = meet()
    assert other.seal({"go": 0}).rstrip(b"\n") == first  # same nonces here; they are random where it counts


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_no_line_breaks_a_session(line: bytes) -> None:
    chief, _ = meet()
    with pytest.raises(LinkError):
        chief.open(line)


class Star:
    """A chief's end and what it was told, in loops of their own."""

    def __init__(self, link_timeout_s: float = 1.0) -> None:
        self.loops = [Loop()]
        self.bond = Bond("job", 1, SECRET, link_timeout_s)
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        self.told: list[tuple[object, ...]] = []
        self.chief = ChiefEnd(
            self.loops[0],
            listener,
            self.bond,
            {"worker-1", "worker-2"},
            on_join=lambda task: self.told.append(("join", task)),
            on_message=lambda task, message: self.told.append(("message", task, message)),
            on_loss=lambda task, reason: self.told.append(("loss", task, reason)),
        )
        self.ends: list[PeerEnd] = []

    def peer(
        self, task: str = "worker-1", bond: Bond | None = None, *, port: int = 0, join_s: float = 5.0
    ) -> PeerEnd:
        self.loops.append(Loop())
        end = PeerEnd(
            self.loops[-1],
            Member("worker-0", "127.0.0.1", 2222, port or self.port),
            bond or self.bond,
            task,
            join_s,
            on_join=lambda: self.told.append(("joined", task)),
            on_message=lambda message: self.told.append(("heard", task, message)),
            on_loss=lambda reason: self.told.append(("lost", task, reason)),
        )
        self.ends.append(end)
        return end

    def until(self, true: Callable[[], bool], deadline_s: float = 10.0) -> None:
        end = time.monotonic() + deadline_s
        while not true():
            assert time.monotonic() < end, self.told
            for loop in self.loops:
                loop.after("test", 0.002, lambda: None)
                loop.turn()

    def close(self) -> None:
        for end in self.ends:
            end.close()
        self.chief.close()
        for loop in self.loops:
            loop.close()


@pytest.fixture
def star() -> Iterator[Star]:
    built = Star()
    yield built
    built.close()


def test_a_peer_joins_and_both_are_heard(star: Star) -> None:
    peer = star.peer()
    star.until(lambda: ("join", "worker-1") in star.told and ("joined", "worker-1") in star.told)
    message: Message = {"ready": 1}
    peer.send(message)
    star.chief.broadcast({"go": 1})
    star.until(
        lambda: ("message", "worker-1", message) in star.told and ("heard", "worker-1", {"go": 1}) in star.told
    )
    peer.close()
    star.until(lambda: ("loss", "worker-1", "its agent ended") in star.told)


def test_a_link_stands_through_times_without_a_message(star: Star) -> None:
    star.peer()
    star.until(lambda: ("joined", "worker-1") in star.told)
    began = time.monotonic()
    star.until(lambda: time.monotonic() - began > 2.5)
    assert not [one for one in star.told if one[0] in ("loss", "lost")]


def test_strangers_are_dropped_and_disturb_nobody(star: Star) -> None:
    star.peer()
    star.until(lambda: ("join", "worker-1") in star.told and ("joined", "worker-1") in star.told)
    before = list(star.told)
    star.peer("worker-2", Bond("job", 1, b"t" * 32, 1.0))
    star.peer("worker-7")  # knows the secret, and is not of the job
    star.peer("worker-1")  # is there already
    strangers = [socket.create_connection(("127.0.0.1", star.port)) for _ in range(80)]
    for stranger, data in zip(
        strangers, (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 5000, b"x" * 100_000, b"\n"), strict=False
    ):
        stranger.sendall(data)
    began = time.monotonic()
    star.until(lambda: time.monotonic() - began > 0.5)
    for stranger in strangers:
        stranger.close()
    assert [one for one in star.told if one[0] in ("join", "message", "loss")] == [
        one for one in before if one[0] in ("join", "message", "loss")
    ]
    star.chief.broadcast({"go": 1})
    star.until(lambda: ("heard", "worker-1", {"go": 1}) in star.told)


def test_a_silent_peer_is_lost(star: Star) -> None:
    with socket.create_connection(("127.0.0.1", star.port)) as silent:
        greeting = PeerGreeting(SECRET, "job", 1, "worker-2", os.urandom(16))
        silent.sendall(greeting.first())
        silent.setblocking(False)
        answer = bytearray()

        def answered() -> bool:
            try:
                answer.extend(silent.recv(4096))
            except BlockingIOError:
                return False
            return answer.endswith(b"\n")

        star.until(answered)
        proof, _ = greeting.take(bytes(answer))
        silent.sendall(proof)
        star.until(lambda: ("join", "worker-2") in star.told)
        star.until(lambda: ("loss", "worker-2", "its agent was silent for 1 s") in star.told)


def test_a_peer_tries_until_the_chief_is_there(star: Star) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        free = other.getsockname()[1]
    star.peer("worker-2", port=free)
    began = time.monotonic()
    star.until(lambda: time.monotonic() - began > 0.3)
    assert star.told == []
    star.peer("worker-1", port=free, join_s=0.4)
    star.until(lambda: any(one[0] == "lost" for one in star.told))
    reason = f"its agent at port {free} did not answer within 0.4 s (Connection refused)"
    assert star.told == [("lost", "worker-1", reason)]
