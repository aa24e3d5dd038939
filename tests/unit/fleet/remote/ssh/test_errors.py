"""Errors for the exceptions of the SSH libraries."""

from __future__ import annotations

import inspect
from typing import Any

import paramiko
import pytest
from paramiko import auth_handler
from paramiko.auth_strategy import AuthFailure, AuthResult, SourceResult

from fleet.errors import UnreachableError, WrongHostError
from fleet.remote.ssh.errors import is_cut, translate
from provision.model import Host

CUT = "transport shut down"  # in the words of paramiko
HOST = Host("worker-0", "10.0.0.2", 22, "user", "ssh-ed25519 AAAA", "key-alias", "10.0.0.2", "python3", "/tmp/fleet")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Authentication failed.", WrongHostError),
        (f"Authentication failed: {CUT} or saw EOF", UnreachableError),
    ],
)
def test_only_a_refused_key_is_final_and_not_a_connection_that_ends_in_the_login(text: str, kind: type) -> None:
    error = translate(HOST, paramiko.AuthenticationException(text))
    assert type(error) is kind


def test_paramiko_reports_such_a_connection_in_these_words() -> None:
    assert CUT in inspect.getsource(auth_handler)


@pytest.mark.parametrize(("texts", "expected"), [((CUT,), True), (("no", CUT), False), (("no",), False), ((), False)])
def test_a_connection_that_ends_after_a_refused_key_was_not_cut(texts: tuple[str, ...], expected: bool) -> None:
    unused: Any = None
    result = AuthResult(unused)
    result.extend(SourceResult(unused, paramiko.AuthenticationException(text)) for text in texts)
    assert is_cut(AuthFailure(result)) is expected
