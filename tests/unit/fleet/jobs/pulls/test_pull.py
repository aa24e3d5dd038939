"""Decisions of `fleet pull`: which copies count as whole, and which copy is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.errors import NotFoundError
from fleet.jobs.pull import covers, replaces, select_tasks
from fleet.jobs.results import StoredJobs, StoredTask
from fleet.results.target import Target
from fleet.state import FleetDirectory, OnThisComputer
from provision.model import Host
from train.agent.protocol.records import Area, AreaUse, StoredJob


def task(*areas: Area, name: str = "worker-0") -> StoredTask:
    uses = [AreaUse(area, "/h", 1, 1) for area in areas]
    stored = StoredJob("j", name, "", "/h/j", 1, "print" if areas else "", uses)
    return StoredTask(Host(name, "127.0.0.1", 22, "u", "", "", ""), stored, name, copied=False, safe=False)


def test_a_copy_of_some_kinds_is_whole_only_if_the_task_has_no_others() -> None:
    both = task(Area.MODEL, Area.LOGS)
    assert covers((), both, "changed since")
    assert covers((Area.MODEL, Area.LOGS, Area.FILES), both, "print")
    assert not covers((Area.MODEL,), both, "print")
    assert not covers((Area.MODEL, Area.LOGS), both, "changed since")  # perhaps by a file of another kind


def test_a_copy_of_less_in_another_directory_does_not_replace_a_whole_one(tmp_path: Path) -> None:
    whole = str(tmp_path / "whole")
    assert replaces(whole, "/elsewhere", [])  # its files are gone
    with Target(tmp_path / "whole", "j") as target:
        target.finish({"a": ("1", {}), "b": ("2", {})})
    assert not replaces(whole, "/elsewhere", ["a"])
    assert replaces(whole, "/elsewhere", ["a", "b"])
    assert replaces(whole, whole, [])
    assert replaces("", "/elsewhere", [])


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
