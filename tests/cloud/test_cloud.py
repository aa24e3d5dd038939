"""The program against the emulator of Compute Engine: credentials, refusals, and clean-up after any end."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cloud.access_modes import write_credentials
from tests.emulator import Emulator
from tests.program import Program, wait_for

pytestmark = pytest.mark.wire
UP = ("up", "--workers", "2", "--gpu", "t4", "--yes")


@pytest.fixture(scope="module")
def running() -> Iterator[Emulator]:
    with Emulator(operation_s=0.3) as emulator:
        yield emulator


def held(emulator: Emulator) -> list[str]:
    state = emulator.state()
    return [*state["instances"], *state["disks"], *state["firewalls"], *state["addresses"]]


# --- credentials --------------------------------------------------------------------------------------------------


def test_missing_credentials_are_reported_with_the_command_that_creates_them(caller: Program) -> None:
    env = {"GOOGLE_APPLICATION_CREDENTIALS": str(caller.directory / "missing.json")}
    ran = caller.run(*UP, env=env, code=10)
    assert "gcloud auth application-default login" in ran.err
    doctor = caller.run("doctor", "--provider", "gce", env=env, code=10)
    assert "gcloud auth application-default login" in doctor.text + doctor.err


def test_expired_credentials_are_reported_without_the_secret(caller: Program, emulator: Emulator) -> None:
    emulator.faults.add("invalid-grant", "oauth.token", times=0)
    env = {"GOOGLE_APPLICATION_CREDENTIALS": write_credentials(caller.directory, emulator.url)}
    ran = caller.run(*UP, env=env, code=10)
    assert "gcloud auth application-default login" in ran.err
    assert "PRIVATE KEY" not in ran.err + ran.text


def test_doctor_reports_a_missing_project_and_a_failed_connection(caller: Program, emulator: Emulator) -> None:
    file = Path(write_credentials(caller.directory, emulator.url))
    account = json.loads(file.read_text())
    file.write_text(json.dumps({**account, "project_id": "", "token_uri": "http://127.0.0.1:9/token"}))
    env = {"GOOGLE_APPLICATION_CREDENTIALS": str(file), "FLEET_GCE_PROJECT": ""}
    ran = caller.run("doctor", "--provider", "gce", "-o", "json", env=env, code=14)
    checks = {event["subject"]: event["ok"] for event in ran.events if "subject" in event}
    assert (checks["connection"], checks["project"], checks["address"]) == (False, False, True)


# --- before creation -------------------------------------------------------------------------------------------


def test_a_stockout_in_all_zones_names_each_location_and_leaves_no_resource(
    caller: Program, emulator: Emulator
) -> None:
    emulator.faults.add("stockout", "compute.*bulkInsert", times=0)
    ran = caller.run(*UP, "--zone", "us-central1", "--zone", "us-west4-b", code=12)
    assert "us-central1" in ran.err
    assert "us-west4-b" in ran.err
    assert "--retry-until-up" in ran.err
    assert held(emulator) == []


# --- Identity-Aware Proxy


# --- interrupted commands -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", ["firewall", "insert", "inserted"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_resource_is_lost_if_up_is_interrupted(
    caller: Program, emulator: Emulator, sign: str, number: int
) -> None:
    process = caller.start(*UP)
    journal = caller.state / "fleets" / "default" / "journal"
    wait_for(f"{sign} in the journal", lambda: journal.exists() and f'"{sign}"' in journal.read_text())
    process.send_signal(number)
    ended = caller.finish(process, code=None)
    if number == signal.SIGINT:
        assert ended.code == 103
        assert held(emulator) == []
    else:
        assert ended.code == -signal.SIGKILL
        caller.run("status", code=None)
        caller.run("down", "--yes")
        assert held(emulator) == []


def test_gc_deletes_the_resources_of_a_lost_state_directory(
    caller: Program, emulator: Emulator, tmp_path: Path
) -> None:
    process = caller.start(*UP)
    wait_for("instances", lambda: len(emulator.state()["instances"]) == 2)
    process.kill()
    caller.finish(process, code=None)
    emulator.settle()
    subprocess.run(["rm", "-rf", str(caller.state)], check=True)
    assert "demo" not in caller.run("gc", code=2).text  # not confirmed
    assert len(held(emulator)) > 0
    assert "0 left" in caller.run("gc", "--yes").err
    assert held(emulator) == []
