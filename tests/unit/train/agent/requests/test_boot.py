from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from train.agent.files.boot import store_boot, store_members
from train.agent.files.paths import HostPaths, TaskPaths
from train.agent.protocol.records import Commit, Member

SESSION = {"PATH": "/usr/bin", "LANG": "C"}


def commit(**values: Any) -> Commit:
    members = [Member(f"worker-{number}", "", f"10.0.0.{number}", 2222, 3000 + number) for number in range(3)]
    return Commit("j", "worker-1", members, "ab", ["python3"], {}, **{"secret_env": {}, "rejoins": True, **values})


@pytest.fixture
def paths(tmp_path: Path) -> TaskPaths:
    task = HostPaths(str(tmp_path)).task("j", "worker-1")
    Path(task.directory).mkdir(parents=True)
    return task


def test_a_host_stores_what_it_needs_for_its_owner_only(tmp_path: Path, paths: TaskPaths) -> None:
    store_boot(HostPaths(str(tmp_path)), paths, commit(), SESSION, 0o22, 2)
    file, program = Path(paths.boot), tmp_path / "boot"
    assert json.loads(file.read_bytes()) == {"secret": "ab", "session": SESSION, "umask": 0o22, "gpus": 2}
    assert file.stat().st_mode & 0o777 == 0o600
    assert program.stat().st_mode & 0o777 == 0o700
    *_, code = shlex.split(program.read_text().splitlines()[1])
    assert f"rejoin_jobs({str(tmp_path)!r})" in code
    agent = code.partition("sys.path.insert(0, ")[2].partition(")")[0]
    assert (Path(agent.strip("'")) / "train" / "agent" / "requests" / "join.py").exists()


def test_members_are_not_stored_by_a_host_that_does_not_rejoin(paths: TaskPaths) -> None:
    store_members(paths, commit().members)
    assert not Path(paths.boot).exists()


@pytest.mark.parametrize("values", [{"rejoins": False}, {"secret_env": {"TOKEN": "t"}}])
def test_no_secret_is_stored_that_must_not_be(values: dict[str, Any], tmp_path: Path, paths: TaskPaths) -> None:
    store_boot(HostPaths(str(tmp_path)), paths, commit(**values), SESSION, 0o22, 0)
    assert not list(tmp_path.glob("boot*"))
    assert not Path(paths.boot).exists()
