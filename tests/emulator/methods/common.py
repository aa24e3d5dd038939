"""Operations on resources, and checks of the names in paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.emulator import failures
from tests.emulator.cloud import Call, Cloud
from tests.emulator.failures import Failure, not_found
from tests.emulator.operations import Done, Work, at_once

Json = dict[str, Any]


def launch(
    cloud: Cloud,
    call: Call,
    kind: str,
    target: str,
    begin: Any,
    target_id: str = "",
    finish: Callable[[Done], None] = at_once,
) -> Json:
    """Start an operation whose effect comes when it begins; `finish` does the rest when its time is over."""
    fault = call.fault

    def faulty() -> Failure | None:
        failure = fault.failure(None, "") if fault else None
        failure = failure or begin()
        if failure is None and fault and fault.kind == "fails-after":
            failure = failures.operation_failure("INTERNAL_ERROR", fault.message, 500)
        return failure

    operation = cloud.launch(call, kind, target, Work(faulty, finish), target_id=target_id)
    project = call.path["project"]
    operation.body["selfLink"] = operation.body["selfLink"].replace(cloud.base, cloud.url_of(project))
    return operation.body


def existing_name(cloud: Cloud, call: Call, parameter: str, names: Any, noun: str) -> str:
    """The parameter of the path, which must be one of `names`."""
    name = call.path[parameter]
    if name not in names:
        raise not_found(f"projects/{cloud.project}/{noun}/{name}")
    return name
