"""Errors from public threads get the right class, and a command or option that fixes them."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import compute_v1

from provision.gce.api.messages import from_http, from_json, from_operation
from provision.gce.diagnosis import Failure, diagnose
from tests.next_steps import command_lines
from tests.unit.provision.gce.bodies import BODIES


def failures_of(body: dict[str, Any]) -> list[Failure]:
    if body.get("operation"):
        failed = {"status": "DONE", "error": body["body"], "httpErrorStatusCode": body["status"]}
        return from_operation(from_json(compute_v1.Operation, failed))
    return from_http(body["status"], body["body"])


@pytest.mark.parametrize("name", BODIES)
def test_an_error_of_a_public_thread_gets_its_class_and_a_fix(name: str) -> None:
    body, expected = BODIES[name], BODIES[name]["expected"]
    failures = failures_of(body)
    diagnosis = diagnose(failures, project="proj-1", location="us-central1-a", doing="create 2 instances")
    assert (diagnosis.kind.value, diagnosis.scope.value) == (expected["kind"], expected["scope"])
    assert expected["message"] in diagnosis.message
    options = " ".join(diagnosis.again or {})
    assert expected["fix"] in f"{diagnosis.hint}\n{command_lines(diagnosis)}\n{options}"
    assert body["source"].startswith("https://")
    if "quota" not in name:  # a quota is requested on a page
        assert diagnosis.next_steps or diagnosis.again or "--subnet" in diagnosis.hint


def test_bodies_of_25_public_threads_are_stored() -> None:
    assert len({body["source"] for body in BODIES.values()}) >= 25
