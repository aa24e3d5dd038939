from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.error import URLError

import pytest

from train.agent.peers import revive
from train.agent.peers.revive import Cloud

NOW = 1_000_000.0
API = "https://compute.googleapis.com"
INSTANCE = f"{API}/compute/v1/projects/p/zones/z-a/instances/vision-k3b7x2qa-worker-1"


class Server:
    """The metadata server and the API, with the calls that changed something."""

    def __init__(self, status: str = "TERMINATED", **attributes: str) -> None:
        self.instance: dict[str, Any] = {
            "id": "7",
            "status": status,
            "lastStopTimestamp": "2026-11-23T12:00:00Z",
            "metadata": {"items": [{"key": "fleet-restarts", "value": API}]},
        }
        self.started: list[str] = []
        self.tokens = 0
        self.metadata = {
            "instance/name": "vision-k3b7x2qa-worker-0",
            "instance/zone": "projects/1/zones/z-a",
            "project/project-id": "p",
            "instance/service-accounts/default/token": '{"access_token": "t", "expires_in": 3599}',
            **{f"instance/attributes/{key}": value for key, value in attributes.items()},
        }

    def fetch(self, url: str, headers: Mapping[str, str], body: bytes | None = None) -> bytes:
        path = url.partition("/computeMetadata/v1/")[2]
        if path:
            assert headers == {"Metadata-Flavor": "Google"}
            self.tokens += path.endswith("/token")
            if path not in self.metadata:
                raise URLError("not found")
            return self.metadata[path].encode()
        assert headers == {"Authorization": "Bearer t"}
        if body is None:
            assert url == INSTANCE
            return json.dumps(self.instance).encode()
        self.started.append(url)
        return b"{}"


def use(server: Server, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    monkeypatch.setattr(revive, "_fetch", server.fetch)
    monkeypatch.setattr("train.agent.peers.revive.time.time", lambda: NOW)
    return Cloud("metadata")


def server(status: str = "TERMINATED", **attributes: str) -> Server:
    return Server(status, **{"fleet-restarts": API, "fleet-stop-at": "0", **attributes})


def test_two_hosts_send_the_same_request_for_the_same_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    world = server()
    for _ in range(2):
        use(world, monkeypatch).start("worker-0", "worker-1", 0)
    assert len(set(world.started)) == 1
    use(world, monkeypatch).start("worker-0", "worker-1", 1)  # after a start without capacity
    world.instance["lastStopTimestamp"] = "2026-11-23T13:00:00Z"
    use(world, monkeypatch).start("worker-0", "worker-1", 0)
    assert len(set(world.started)) == 3


@pytest.mark.parametrize("status", ["RUNNING", "STAGING", "STOPPING"])
def test_a_host_that_is_not_stopped_is_left_alone(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = server(status)
    assert not use(world, monkeypatch).start("worker-0", "worker-1", 0)
    assert not world.started


@pytest.mark.parametrize(("left_s", "starts"), [(3600, True), (200, False), (-60, False)])
def test_no_host_is_started_at_the_end_of_the_lifetime(
    left_s: int, starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = server(**{"fleet-stop-at": str(int(NOW) + left_s)})
    assert use(world, monkeypatch).start("worker-0", "worker-1", 0) is starts
    assert bool(world.started) is starts
