"""Reports of `fleet down`, `fleet jobs` and `fleet status` about results that are on the hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.errors import NotFoundError
from fleet.jobs.pull import select_tasks
from fleet.jobs.results import StoredJobs, survey_of
from fleet.remote.results import Store
from fleet.results.target import Target
from fleet.state import FleetDirectory
from fleet.state import Store as StateStore
from provision.model import Host
from train.agent.protocol.records import Area, AreaUse, DiskSpace, StoredJob

LOGS, MODEL = AreaUse(Area.LOGS, "/h/j", 1, 10), AreaUse(Area.MODEL, "/h/j/model", 1, 100)


def stored(directory: FleetDirectory, *areas: list[AreaUse]) -> StoredJobs:
    """Return a job whose tasks left these results."""
    uses = [
        (
            Host(f"worker-{rank}", "127.0.0.1", 22, "u", "", "", ""),
            Store((StoredJob("j", f"worker-{rank}", "", "/h/j", 10, f"print-{rank}", uses),), DiskSpace("/h", 1, 2)),
        )
        for rank, uses in enumerate(areas)
    ]
    return survey_of(uses, directory, {}).jobs[0]


def test_a_job_is_partly_pulled_if_some_tasks_were(tmp_path: Path) -> None:
    directory = StateStore(tmp_path / "state").fleet("demo")
    directory.create()
    with Target(tmp_path / "results", "j") as target:
        target.finish({"worker-0/worker-0": ("print-0", {})})
        directory.note_results("j", directory=str(tmp_path / "results"))
        assert stored(directory, [LOGS, MODEL], [LOGS, MODEL]).summary().pulled == "partly"
        target.finish({"worker-1/worker-1": ("print-1", {})})
    directory.note_results("j", log_shown=True)
    assert stored(directory, [LOGS, MODEL], [LOGS, MODEL], [LOGS]).summary().pulled == "yes"


def test_a_kind_that_no_task_has_is_named_with_those_that_exist(tmp_path: Path) -> None:
    job = stored(StateStore(tmp_path).fleet("demo"), [LOGS], [LOGS, MODEL])
    assert len(select_tasks(job, "", [Area.MODEL])) == 2
    with pytest.raises(NotFoundError, match="worker-0 of job j has no model or files") as caught:
        select_tasks(job, "worker-0", [Area.MODEL, Area.FILES])
    assert caught.value.cause == "it has logs"
