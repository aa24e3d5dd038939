"""Batch requests and responses in the form of Compute Engine."""

from __future__ import annotations

import email.parser
import email.policy
import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.gce.api.batch import CALLS_MAX, Answer, Call, decode, encode

CALLS = [
    Call("DELETE", "/compute/v1/projects/p/zones/z/instances/a?requestId=1"),
    Call("POST", "/compute/v1/projects/p/zones/z/instances/b/setScheduling", {"maxRunDuration": {"seconds": "60"}}),
    Call("GET", "/compute/v1/projects/p/zones/z/instances/c/getGuestAttributes?queryPath=hostkeys%2F"),
]


def answer(parts: list[str], boundary: str = "batch_x") -> tuple[str, bytes]:
    text = "".join(f"--{boundary}\r\n{part}\r\n" for part in parts) + f"--{boundary}--\r\n"
    return f"multipart/mixed; boundary={boundary}", text.encode()


def part(index: int, status: str, body: str) -> str:
    return (
        "Content-Type: application/http\r\n"
        f"Content-ID: <response-{index}>\r\n\r\n"
        f"HTTP/1.1 {status}\r\nETag: abc\r\nContent-Type: application/json; charset=UTF-8\r\n"
        f"Content-Length: {len(body.encode())}\r\n\r\n{body}"
    )


def test_a_request_has_a_part_for_each_call() -> None:
    content_type, body = encode(CALLS)
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(
        f"Content-Type: {content_type}\r\n\r\n".encode() + body
    )
    parts = list(message.iter_parts())
    assert message.get_content_type() == "multipart/mixed"
    assert [item.get_content_type() for item in parts] == ["application/http"] * 3
    assert [item["Content-ID"] for item in parts] == ["<0>", "<1>", "<2>"]
    texts = [str(item.get_payload()) for item in parts]
    assert texts[0].startswith("DELETE /compute/v1/projects/p/zones/z/instances/a?requestId=1 HTTP/1.1\r\n")
    head, _, sent = texts[1].partition("\r\n\r\n")
    assert "Content-Type: application/json" in head
    assert f"Content-Length: {len(sent.strip())}" in head
    assert json.loads(sent) == CALLS[1].body
    assert "Content-Type: application/json" not in texts[0]


def test_no_body_contains_the_boundary() -> None:
    assert encode(CALLS)[0] != encode(CALLS)[0]


@pytest.mark.parametrize("count", [0, CALLS_MAX + 1])
def test_a_batch_has_a_size(count: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 1000 calls, not {count}"):
        encode([CALLS[0]] * count)
    assert encode([CALLS[0]] * CALLS_MAX)[1].count(b"Content-ID:") == CALLS_MAX


def test_answers_come_in_any_order() -> None:
    error = {"error": {"code": 404, "message": "The resource 'é' was not found"}}
    parts = [
        part(2, "404 Not Found", json.dumps(error, ensure_ascii=False)),
        part(0, "200 OK", '{\n  "name": "operation-1"\n}\n'),
        part(1, "204 No Content", ""),
    ]
    assert decode(*answer(parts)) == [Answer(200, {"name": "operation-1"}), Answer(204, {}), Answer(404, error)]


def test_a_quoted_boundary_and_text_around_the_parts_are_accepted() -> None:
    _, body = answer([part(0, "200 OK", "{}")], "b=_x 1")
    content_type = 'multipart/mixed; boundary="b=_x 1"; charset=UTF-8'
    assert decode(content_type, b"preamble\r\n" + body + b"epilogue") == [Answer(200, {})]


def test_a_response_that_is_not_json_keeps_its_text() -> None:
    assert decode(*answer([part(0, "502 Bad Gateway", "<html>Bad")])) == [
        Answer(502, {"error": {"message": "<html>Bad"}})
    ]
    assert decode(*answer([part(0, "200 OK", "[1]")])) == [Answer(200, {})]


@pytest.mark.parametrize(
    ("content_type", "body", "words"),
    [
        ("application/json", b"{}", "answered with application/json"),
        ("multipart/mixed; boundary=x", b"", "answered with"),
        (*answer([part(1, "200 OK", "{}")]), "lacks some of its calls"),
        (*answer(["Content-Type: application/http\r\n\r\nHTTP/1.1 200 OK\r\n\r\n{}"]), "which call"),
        (
            *answer(["Content-ID: <response-0>\r\n\r\nhello"]),
            "a part of the answer to a batch is not an HTTP response",
        ),
    ],
)
def test_a_response_that_is_not_a_batch_is_refused(content_type: str, body: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode(content_type, body)


@given(
    st.lists(st.tuples(st.integers(200, 599), st.dictionaries(st.text(), st.text())), min_size=1, max_size=8),
    st.randoms(),
)
def test_any_answers_are_read_back(given_answers: list[tuple[int, dict[str, str]]], random: Random) -> None:
    parts = [
        part(index, f"{status} X", json.dumps(content, ensure_ascii=False))
        for index, (status, content) in enumerate(given_answers)
    ]
    random.shuffle(parts)
    assert decode(*answer(parts)) == [Answer(status, content) for status, content in given_answers]
