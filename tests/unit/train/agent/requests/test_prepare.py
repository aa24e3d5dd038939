"""Test the decisions of Prepare about the files of earlier jobs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from train.agent.files.paths import HostPaths
from train.agent.requests.prepare import discard_unused


def test_a_job_that_is_deleted_meanwhile_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = HostPaths(str(tmp_path))
    for number in range(7):
        task = host.task(f"job-{number}", "worker-0")
        Path(task.directory).mkdir(parents=True)
        Path(task.job).touch()
    exists = os.path.exists

    def delete_after(path: str) -> bool:
        answer = exists(path)
        if path.startswith(f"{host.jobs}/job-3/"):
            shutil.rmtree(f"{host.jobs}/job-3")
        return answer

    monkeypatch.setattr(os.path, "exists", delete_after)
    assert discard_unused(host, set()) == 0
    assert len([*Path(host.jobs).iterdir()]) == 6
