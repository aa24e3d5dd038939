"""Decisions of `fleet pull`: which tasks are copied, and which pulls are pending."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.errors import NotFoundError
from fleet.jobs.pull import select_tasks
from fleet.jobs.results import StoredJobs, StoredTask
from fleet.state import FleetDirectory, OnThisComputer
from provision.model import Host
from train.agent.protocol.records import Area, AreaUse, StoredJob


def task(*areas: Area, name: str = "worker-0") -> StoredTask:
    uses = [AreaUse(area, "/h", 1, 1) for area in areas]
    stored = StoredJob("j", name, "", "/h/j", 1, "print" if areas else "", uses)
    return StoredTask(Host(name, "127.0.0.1", 22, "u", "", "", ""), stored, name, copied=False, safe=False)


def test_a_kind_that_no_task_has_is_named_with_those_that_exist() -> None:
    job = StoredJobs("j", (task(Area.LOGS), task(Area.LOGS, Area.FILES, name="worker-1")), OnThisComputer())
    assert len(select_tasks(job, "", [Area.FILES])) == 2
    with pytest.raises(NotFoundError, match="worker-0 of job j has no model or files") as caught:
        select_tasks(job, "worker-0", [Area.MODEL, Area.FILES])
    assert caught.value.cause == "it has logs"


def test_a_requested_pull_is_recorded_until_it_is_done(tmp_path: Path) -> None:
    directory = FleetDirectory(tmp_path)
    directory.note_results("j", pull_to="/there")
    directory.note_results("j", log_shown=True)
    assert directory.on_this_computer("j").pull_to == "/there"
    directory.forget_pull("j")
    assert directory.on_this_computer("j") == OnThisComputer(log_shown=True)
    directory.note_results("k", pull_to="/there")
    directory.forget_pull("k")
    assert directory.recorded_jobs() == ["j"]
