"""The proof and the seal between agents."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.agent.protocol.session import LONGEST_MESSAGE, Credentials, LinkError, Session, encode_message

SECRET = b"s" * 32
CHIEF, PEER = Credentials("job", SECRET, "worker-0", 1), Credentials("job", SECRET, "worker-1", 1)


def meet(credentials: Credentials = PEER) -> tuple[Session, Session]:
    """Return the sessions of the chief and of a peer."""
    chief, peer = CHIEF.chief_greeting(), credentials.peer_greeting()
    answer, nothing = chief.take(peer.first().rstrip())
    assert nothing is None
    proof, peers = peer.take(answer.rstrip())
    _, chiefs = chief.take(proof.rstrip())
    assert chiefs is not None
    assert (chief.slot, peer.slot) == ("worker-1", "worker-0")
    return chiefs, peers


def test_who_knows_the_secret_is_understood_in_both_directions() -> None:
    chief, peer = meet()
    for n in range(3):
        assert peer.open(chief.seal(encode_message({"go": n})).rstrip(b"\n")) == {"go": n}
        assert chief.open(peer.seal(encode_message({"exited": [n, "ü"]})).rstrip(b"\n")) == {"exited": [n, "ü"]}


def test_a_peer_with_another_secret_finds_that_the_chief_is_not_his() -> None:
    with pytest.raises(LinkError, match="does not know the job's secret"):
        meet(PEER._replace(secret=b"t" * 32))


@pytest.mark.parametrize(("job", "attempt"), [("other", 1), ("job", 2)])
def test_another_job_or_attempt_is_turned_away(job: str, attempt: int) -> None:
    with pytest.raises(LinkError, match="another job or attempt"):
        meet(PEER._replace(job=job, attempt=attempt))


def test_the_chiefs_proof_cannot_be_sent_back_to_him() -> None:
    chief = CHIEF.chief_greeting()
    answer, _ = chief.take(PEER.peer_greeting().first())
    with pytest.raises(LinkError):
        chief.take(json.dumps({"proof": json.loads(answer)["proof"]}).encode())


def test_replayed_reflected_reordered_and_changed_messages_are_refused() -> None:
    chief, peer = meet()
    first, second = (chief.seal(encode_message({"go": n})).rstrip(b"\n") for n in range(2))
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
    _, other = meet()
    with pytest.raises(LinkError):
        other.open(first)


def test_a_long_message_is_compressed_and_one_that_grows_too_much_is_refused() -> None:
    chief, peer = meet()
    message = {"members": [{"slot": f"worker-{n}", "address": f"10.0.{n >> 8}.{n & 255}"} for n in range(1000)]}
    text = encode_message(message)
    assert len(text) < len(json.dumps(message)) / 4
    assert peer.open(chief.seal(text).rstrip(b"\n")) == message
    for bad in (b"z", b"z=", b"zAAAA", encode_message({"x": "a" * (LONGEST_MESSAGE + 1)})):
        chief, peer = meet()
        with pytest.raises(LinkError):
            peer.open(chief.seal(bad).rstrip(b"\n"))


@given(st.binary(max_size=200))
def test_no_line_breaks_a_session(line: bytes) -> None:
    chief, _ = meet()
    with pytest.raises(LinkError):
        chief.open(line)
