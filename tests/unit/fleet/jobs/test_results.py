"""Reports of `fleet down`, `fleet jobs` and `fleet status` about results that are on the hosts."""

from __future__ import annotations

from pathlib import Path

from fleet.jobs.results import survey_of
from fleet.remote.results import Store
from fleet.results.target import Target
from fleet.state import FleetDirectory
from fleet.state import Store as StateStore
from provision.model import Host
from train.agent.protocol.records import Area, AreaUse, DiskSpace, StoredJob

LOGS, MODEL = AreaUse(Area.LOGS, "/h/j", 1, 10), AreaUse(Area.MODEL, "/h/j/model", 1, 100)


def stored(directory: FleetDirectory, *areas: list[AreaUse]) -> str:
    """Return how much was pulled of a job whose tasks left these results."""
    uses = [
        (
            Host(f"worker-{rank}", "127.0.0.1", 22, "u", "", "", ""),
            Store((StoredJob("j", f"worker-{rank}", "", "/h/j", 10, f"print-{rank}", uses),), DiskSpace("/h", 1, 2)),
        )
        for rank, uses in enumerate(areas)
    ]
    return survey_of(uses, directory, {}).jobs[0].summary().pulled


def test_a_job_is_partly_pulled_if_some_tasks_were(tmp_path: Path) -> None:
    directory = StateStore(tmp_path / "state").fleet("demo")
    directory.create()
    with Target(tmp_path / "results", "j") as target:
        target.finish({"worker-0/worker-0": ("print-0", {})})
        directory.note_results("j", directory=str(tmp_path / "results"))
        assert stored(directory, [LOGS, MODEL], [LOGS, MODEL]) == "partly"
        target.finish({"worker-1/worker-1": ("print-1", {})})
    directory.note_results("j", log_shown=True)
    assert stored(directory, [LOGS, MODEL], [LOGS, MODEL], [LOGS]) == "yes"
