"""The allocation of a batch system as an inventory: each node once, and only inside the allocation."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.allocation.provider import AllocationProvider
from provision.inventory.allocation import here, read_allocation
from provision.provider import ErrorKind, ProviderError
from provision.ssh_config.routes import resolve_route
from provision.static.options import StaticOptions
from provision.static.selection import host_id, read_selection

SLURM = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "gpu[01-03,7],login1"}


def pbs(directory: Path, text: str) -> dict[str, str]:
    path = directory / "nodes"
    path.write_text(text)
    return {"PBS_JOBID": "12[3].server", "PBS_NODEFILE": str(path)}


def inside(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "PBS_JOBID", "PBS_NODEFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


def test_each_node_counts_once_in_its_order(tmp_path: Path) -> None:
    assert here("slurm", SLURM) == "slurm:12"
    assert read_allocation("slurm:12", SLURM).names == ("gpu01", "gpu02", "gpu03", "gpu7", "login1")
    environ = pbs(tmp_path, "n2\nn2\nn1\nn1\n")
    assert here("pbs", environ) == "pbs:12[3].server"
    assert read_allocation("pbs:12[3].server", environ).names == ("n2", "n1")


def test_another_allocation_is_not_taken_for_this_one() -> None:
    with pytest.raises(ProviderError, match="not inside the Slurm allocation 11"):
        read_allocation("slurm:11", SLURM)


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"SLURM_JOB_ID": "12"}, "the node list is empty"),
        ({**SLURM, "SLURM_JOB_NODELIST": "gpu[1-"}, "invalid node list"),
        ({"PBS_JOBID": "12", "PBS_NODEFILE": ""}, "PBS_NODEFILE is not set"),
        ({"PBS_JOBID": "12", "PBS_NODEFILE": "/no/such/file"}, "cannot be read: /no/such/file"),
    ],
)
def test_a_list_of_nodes_that_cannot_be_read_is_refused(environ: dict[str, str], why: str) -> None:
    with pytest.raises(ProviderError, match=why) as refusal:
        read_allocation("slurm:12" if "SLURM_JOB_ID" in environ else "pbs:12", environ)
    assert refusal.value.kind is ErrorKind.USAGE


def test_variable_files_of_the_working_directory_are_not_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text("ansible_user: alice\n")
    monkeypatch.chdir(tmp_path)
    inside(monkeypatch, SLURM)
    assert {entry.options for entry in read_selection(StaticOptions(inventory="slurm:12"))[1]} == {()}


def test_a_hosts_id_names_its_allocation() -> None:
    """The same node of two allocations is two instances; an id is part of a known_hosts file."""
    route = resolve_route("n1", run=lambda _: "hostname 127.0.0.9\nuser me\nport 22\n")
    ids = [host_id(route, job) for job in ("", "slurm:12", "pbs:12[3].server")]
    assert ids == [ids[0], f"slurm-12-{ids[0]}", f"pbs-12-3-.server-{ids[0]}"]


def test_doctor_reports_the_allocation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    provider = AllocationProvider("slurm", tmp_path / "state")
    inside(monkeypatch, {})
    first = provider.doctor()[0]
    assert not first.ok
    assert "salloc" in first.hint
    inside(monkeypatch, SLURM)
    first = provider.doctor()[0]
    assert first.ok
    assert first.message == "job 12 has 5 nodes: gpu01, gpu02, gpu03, gpu7, login1"
    assert provider.name == "slurm"
    assert provider.list() == []
    assert not (tmp_path / "state").exists()
