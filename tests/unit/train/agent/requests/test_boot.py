from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from train.agent.files.boot import store_boot, store_members
from train.agent.files.journal import write_job
from train.agent.files.paths import HostPaths, TaskPaths
from train.agent.protocol.records import Commit, Member, to_dict
from train.agent.requests import boot

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
    assert f"main({str(tmp_path)!r})" in code
    agent = code.partition("sys.path.insert(0, ")[2].partition(")")[0]
    assert (Path(agent.strip("'")) / "train" / "agent" / "requests" / "boot.py").exists()


def test_a_host_finds_members_that_were_restarted_after_the_commit(
    tmp_path: Path, paths: TaskPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, asked = commit(), []

    def await_peers(request: Commit) -> None:
        asked.extend(request.members)
        raise OSError("enough")

    monkeypatch.setattr(boot, "_await_peers", await_peers)
    monkeypatch.setattr("os.environ", {})
    store_boot(HostPaths(str(tmp_path)), paths, request, SESSION, 0o22, 0)
    write_job(paths, to_dict(request))
    now = [member._replace(link_port=4000) for member in request.members]
    store_members(paths, now)
    with pytest.raises(OSError, match="enough"):
        boot._rejoin(HostPaths(str(tmp_path)), paths)
    assert asked == now


def test_members_are_not_stored_by_a_host_that_does_not_rejoin(paths: TaskPaths) -> None:
    store_members(paths, commit().members)
    assert not Path(paths.boot).exists()


@pytest.mark.parametrize("values", [{"rejoins": False}, {"secret_env": {"TOKEN": "t"}}])
def test_no_secret_is_stored_that_must_not_be(values: dict[str, Any], tmp_path: Path, paths: TaskPaths) -> None:
    store_boot(HostPaths(str(tmp_path)), paths, commit(**values), SESSION, 0o22, 0)
    assert not list(tmp_path.glob("boot*"))
    assert not Path(paths.boot).exists()


@pytest.mark.parametrize(("files", "rejoins"), [((), True), (("result",), False), (("queued",), False)])
def test_only_jobs_that_have_begun_and_not_ended_are_rejoined(
    files: tuple[str, ...], rejoins: bool, paths: TaskPaths
) -> None:
    for name in ("boot", "job", "bundle", *files):
        Path(getattr(paths, name)).touch()
    assert boot._is_unfinished(paths) is rejoins


def test_a_host_waits_for_any_peer_that_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def listens(address: str, port: int) -> bool:
        asked.append((address, port))
        return len(asked) > 3

    monkeypatch.setattr(boot, "_listens", listens)
    monkeypatch.setattr(boot, "_PAUSE_S", 0.0)
    boot._await_peers(commit())
    assert asked == [("10.0.0.0", 3000), ("10.0.0.2", 3002)] * 2


def test_a_host_does_not_lead_a_job_that_no_other_host_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot, "_listens", lambda *_: False)
    monkeypatch.setattr(boot, "PEERS_DEADLINE_S", -1.0)
    with pytest.raises(OSError, match="no other host runs it"):
        boot._await_peers(commit())
