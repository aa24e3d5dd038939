from __future__ import annotations

import dataclasses

import pytest

from fleet.errors import NotFoundError, UsageError
from fleet.fleets.access import select_hosts
from provision.model import Host

HOST = Host("worker-0", "10.0.0.2", 22, "ann", "ssh-ed25519 AAAA", "demo.1", "")
HOSTS = [dataclasses.replace(HOST, name=f"worker-{index}") for index in range(4)]


@pytest.mark.parametrize(
    ("given", "numbers"), [("all", [0, 1, 2, 3]), ("2", [2]), ("3,worker-1,3", [1, 3]), ("worker:2", [2])]
)
def test_hosts_are_selected_by_number_and_name(given: str, numbers: list[int]) -> None:
    assert select_hosts("demo", HOSTS, given) == [HOSTS[number] for number in numbers]


@pytest.mark.parametrize("given", ["0,4", "ps-0", "-1", "", "worker-01", "worker-0,", "\u0661"])
def test_other_words_are_not_hosts(given: str) -> None:
    error, text = (NotFoundError, "has no host 'worker-4'") if given == "0,4" else (UsageError, "is not a host")
    with pytest.raises(error, match=text) as raised:
        select_hosts("demo", HOSTS, given)
    assert "worker-[0-3]" in raised.value.cause + raised.value.hint
