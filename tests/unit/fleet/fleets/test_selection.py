from __future__ import annotations

import dataclasses

import pytest

from fleet.errors import NotFoundError, UsageError
from fleet.fleets.access import select_hosts
from provision.model import Host

HOST = Host("worker-0", "10.0.0.2", 22, "ann", "ssh-ed25519 AAAA", "demo.1", "")
HOSTS = [dataclasses.replace(HOST, name=f"worker-{index}") for index in range(4)]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("all", ["worker-0", "worker-1", "worker-2", "worker-3"]),
        ("2", ["worker-2"]),
        ("3,worker-1,3", ["worker-1", "worker-3"]),
        ("worker:2", ["worker-2"]),
    ],
)
def test_hosts_are_selected_by_number_and_name(given: str, names: list[str]) -> None:
    assert [host.name for host in select_hosts("demo", HOSTS, given)] == names


def test_an_unknown_host_is_an_error_that_names_the_hosts() -> None:
    with pytest.raises(NotFoundError, match="'demo' has no host 'worker-4'") as raised:
        select_hosts("demo", HOSTS, "0,4")
    assert raised.value.cause == "its hosts are worker-[0-3]"


@pytest.mark.parametrize("given", ["ps-0", "-1", "", "worker-01", "worker-0,", "\u0661"])
def test_other_words_are_not_hosts(given: str) -> None:
    with pytest.raises(UsageError, match="is not a host"):
        select_hosts("demo", HOSTS, given)
