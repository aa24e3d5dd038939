from __future__ import annotations

from pathlib import Path

import pytest
import typer

from fleet.cli.application import root_command
from fleet.cli.options import complete_fleet, complete_job, complete_worker
from fleet.state import FleetRecord, Store
from provision.model import FleetSpec, Host


def test_values_come_from_readable_records_of_this_computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_STATE_DIR", str(tmp_path))
    store = Store(tmp_path)
    for name in ("default", "vision"):
        store.fleet(name).create()
    hosts = tuple(Host(f"worker-{index}", "127.0.0.1", 22, "root", "", "", "") for index in range(2))
    spec = FleetSpec(name="vision", workers=2, provider="local")
    store.fleet("vision").write(FleetRecord(spec, 0.0, hosts, last_job="20260103-c", last_script="task.py"))
    for job in ("20260101-a", "20260102-b", "20260103-c"):
        store.fleet("vision").note_results(job, log_shown=True)
    context = typer.Context(root_command().commands["logs"])
    context.params["fleet"] = "vision"
    assert complete_fleet("v") == ["vision"]
    assert complete_worker(context, "worker") == ["worker-0", "worker-1"]
    assert complete_job(context, "2026") == [("20260103-c", "task.py"), ("20260102-b", ""), ("20260101-a", "")]
    (store.fleet("vision").path / "fleet.json").write_text("{")
    assert (complete_worker(context, ""), complete_job(context, "")) == ([], [])
