"""Errors for the exceptions of the SSH libraries."""

from __future__ import annotations

import inspect
from typing import Any

import paramiko
import pytest
from paramiko import auth_handler
from paramiko.auth_strategy import AuthFailure, AuthResult, SourceResult

from fleet.errors import WrongHostError
from fleet.remote.ssh.errors import translate
from provision.model import Host

CUT = "transport shut down"  # in the words of paramiko
HOST = Host("worker-0", "10.0.0.2", 22, "user", "ssh-ed25519 AAAA", "key-alias", "10.0.0.2", "python3", "/tmp/fleet")


@pytest.mark.parametrize(("texts", "is_cut"), [((CUT,), True), (("no", CUT), False), (("no",), False), ((), False)])
def test_only_a_refused_key_is_final_and_not_a_connection_that_ends_in_the_login(
    texts: tuple[str, ...], is_cut: bool
) -> None:
    assert CUT in inspect.getsource(auth_handler)
    unused: Any = None
    result = AuthResult(unused)
    result.extend(SourceResult(unused, paramiko.AuthenticationException(text)) for text in texts)
    assert isinstance(translate(HOST, AuthFailure(result)), WrongHostError) is not is_cut
