"""Reports of agents become public field by field."""

from __future__ import annotations

import pytest

from fleet import events
from fleet.events import TaskStatus
from fleet.remote.publication import DERIVED, PUBLIC, publish
from train.agent.protocol import records
from train.agent.protocol.records import Phase, ReasonKind

STATE = records.TaskState(
    "worker-2", "ps-0", 1, Phase.EXITED, 5.0, exit=records.Exit(3), reason="full", reason_kind=ReasonKind.DISK_FULL
)
RESULT = records.JobResult("j", 1, records.Outcome.FAILED, 9.0, exits={"ps-0": records.Exit(signal=9)})


def test_enums_and_nested_objects_are_public_types() -> None:
    assert publish(STATE) == events.TaskState(
        "worker-2", "ps-0", 1, events.Phase.EXITED, 5.0, exit=events.Exit(3), reason="full", reason_kind="disk-full"
    )
    assert publish(RESULT) == events.JobResult(
        "j", 1, events.Outcome.FAILED, 9.0, exits={"ps-0": events.Exit(signal=9)}
    )
    usage = records.Usage("worker-0", "worker-0", 1.0, 2.0, 3, [records.GpuUse(0, 1.0, 2)])
    assert publish(usage).gpus == (events.GpuUse(0, 1.0, 2),)
    report = records.JobReport("j", "demo", "worker-2", "ps-0", 1, Phase.RUNNING, True, 1.0, [], [], 0)
    progress = records.Progress("worker-2", "ps-0", 1, 4.0, epoch=2)
    assert publish(report._replace(progress=progress)) == TaskStatus(
        "ps-0", "worker-2", events.Phase.RUNNING, alive=True, progress=publish(progress)
    )


@pytest.mark.parametrize("record", [kind for kind in PUBLIC if hasattr(kind, "_fields")])
def test_every_public_field_exists_in_the_record(record: type) -> None:
    assert {*PUBLIC[record]._fields} <= {*record.__annotations__} | {name for kind, name in DERIVED if kind is record}
