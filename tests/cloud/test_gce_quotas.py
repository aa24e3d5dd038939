"""Projects with small quotas: the right exit code, and printed commands that lead to a fleet when they are run."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleet.cli.app import run
from tests.emulator import Emulator
from tests.emulator.client import Gcloud

UP = ("up", "--workers", "2", "--gpu", "t4", "--yes")
OK, QUOTA, MISSING = 0, 11, 14


@dataclass
class Screen:
    """Output of a command.

    Attributes:
        text: Its output, without line breaks.
        steps: The commands of its next steps.
    """

    text: str
    steps: list[str]


class User:
    """A user who is logged in to gcloud, where each request for a quota is granted at once."""

    def __init__(self, emulator: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
        self.emulator = emulator
        self._capsys = capsys

    def run(self, *words: str, code: int = OK) -> Screen:
        """Run the command line."""
        returned = run(list(words))
        out, err = self._capsys.readouterr()
        assert returned == code, err
        lines = err.partition("next:")[2].splitlines()
        return Screen(" ".join(f"{err} {out}".split()), [line.strip() for line in lines if line.strip()])

    def request_quotas(self, screen: Screen) -> list[str]:
        """Run the printed commands that request quotas, in a shell; return the names of the quotas."""
        commands = [step for step in screen.steps if step.startswith("gcloud ")]
        for command in commands:
            subprocess.run(["/bin/sh", "-c", command], env=os.environ, check=True, timeout=60)
        return [command.split("--quota-id ")[1].split()[0] for command in commands]

    def assert_up(self, *words: str) -> None:
        """Bring the fleet up."""
        self.run(*words)
        assert [each.status for each in self.emulator.cloud.instances.values()] == ["RUNNING"] * 2


@pytest.fixture
def user(
    emulator: Emulator,
    gcloud: Gcloud,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> User:
    assert gcloud
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEET_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("FLEET_GCE_ENDPOINT", emulator.url)
    monkeypatch.setenv("FLEET_GCE_PROJECT", "proj-1")
    monkeypatch.setenv("FLEET_ADDRESS_URL", f"{emulator.url}/emulator/address")
    monkeypatch.setattr(
        "fleet.cli.fleets.up.reach", lambda spec, made, provider, *_, **__: provider.hosts(spec, made)
    )
    return User(emulator, capsys)


def set_quotas(emulator: Emulator, usual: int, preemptible: int) -> None:
    emulator.set_quota("NVIDIA_T4_GPUS", usual)
    emulator.set_quota("PREEMPTIBLE_NVIDIA_T4_GPUS", preemptible)


def test_spot_vms_need_the_quota_for_them_once_there_is_one(user: User, emulator: Emulator) -> None:
    set_quotas(emulator, 8, 1)
    before = user.run("doctor", "--provider", "gce", "--gpu", "t4", "--spot", code=MISSING)
    refused = user.run(*UP, "--spot", code=QUOTA)
    assert "the quota PREEMPTIBLE_NVIDIA_T4_GPUS of project proj-1 allows 1 in us-central1" in refused.text
    assert not any("ulkInsert" in name for name in emulator.state()["calls"])
    assert before.steps[0] == refused.steps[0]
    assert user.request_quotas(refused) == ["PREEMPTIBLE-NVIDIA-T4-GPUS-per-project-region"]
    user.run("doctor", "--provider", "gce", "--gpu", "t4", "--spot")
    user.assert_up(*UP, "--spot")


@pytest.mark.parametrize("way", ["longer", "request"])
def test_temporary_instances_on_demand_have_two_ways_out(user: User, emulator: Emulator, way: str) -> None:
    set_quotas(emulator, 8, 1)
    refused = user.run(*UP, code=QUOTA)
    assert not emulator.state()["instances"]
    longer, _ = refused.steps
    if way == "longer":
        user.assert_up(*shlex.split(longer)[1:])
        return
    user.request_quotas(refused)
    user.assert_up(*UP)


def test_a_limit_of_the_cost_keeps_instances_temporary(user: User, emulator: Emulator) -> None:
    set_quotas(emulator, 8, 1)
    refused = user.run(*UP, "--max-cost", "5", code=QUOTA)
    assert "--max-duration" not in " ".join(refused.steps)
    user.request_quotas(refused)
    user.assert_up(*shlex.split(refused.steps[-1])[1:])


def test_a_new_project_gets_its_fleet_after_the_printed_requests(user: User, emulator: Emulator) -> None:
    emulator.start_project()
    words = (*UP, "--network", "main", "--subnet", "main")
    first = user.run(*words, code=QUOTA)
    assert "the quota GPUS_ALL_REGIONS of project proj-1 is 0 in all regions together; 2 more needed" in first.text
    assert "an account in its free trial must be upgraded first" in first.text
    assert user.request_quotas(first) == ["GPUS-ALL-REGIONS-per-project"]
    second = user.run(*words, code=QUOTA)
    assert user.request_quotas(second) == [
        "NVIDIA-T4-GPUS-per-project-region",
        "PREEMPTIBLE-NVIDIA-T4-GPUS-per-project-region",
    ]
    user.assert_up(*words)


def test_a_quota_that_regions_do_not_list_is_requested_after_google_refused(user: User, emulator: Emulator) -> None:
    words = ("up", "--workers", "2", "--gpu", "h100", "--spot", "--retry-until-up", "--yes")
    emulator.faults.add("quota", match="compute.*ulkInsert", times=0, metric="NVIDIA_H100_GPUS", limit=1)
    refused = user.run(*words, code=QUOTA)
    assert (
        refused.steps[0]
        .split("--quota-id ")[1]
        .startswith("NVIDIA-H100-GPUS-per-project-region --preferred-value 2 ")
    )
    emulator.faults.clear()
    user.assert_up(*shlex.split(refused.steps[-1])[1:])
