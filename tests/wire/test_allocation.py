"""`fleet agent` without TensorFlow: by hand, by a stand-in for PBS, and by Slurm itself."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from provision.inventory.allocation import expand_nodelist
from tests.pbs import StandIn
from tests.program import PROGRAM, CommandResult, Program, find_paths, wait_for
from tests.slurm import Slurm, obstacle, slurm
from tests.wire import test_isolated_tasks
from train.agent.host import control
from train.agent.protocol.records import Usage

pytestmark = pytest.mark.wire

TASK = """\
import json, os, pathlib, sys, time
config = json.loads(os.environ["TF_CONFIG"])
me = config["task"]["index"]
attempt = int(os.environ["FLEET_ATTEMPT"])
names = ("FLEET_CHECKPOINT_DIR", "FLEET_LOG_DIR", "AIP_MODEL_DIR", "PWD")
words = {"config": config, "directory": os.getcwd(), "arguments": sys.argv[1:], "attempt": attempt,
         "secret": os.environ.get("FLEET_RENDEZVOUS_SECRET"), **{name: os.environ[name] for name in names}}
os.write(1, json.dumps(words).encode() + b"\\n")  # at once: the other task may end this one
if "save" in sys.argv and me == 0:
    pathlib.Path(os.environ["FLEET_CHECKPOINT_DIR"], "ckpt").write_text("saved")
if f"fail-{me}-{attempt}" in sys.argv:
    sys.exit("it ends on purpose")
if "raise" in sys.argv and me == 1:
    raise ValueError("on purpose")
if "sleep" in sys.argv:
    print("sleeping", flush=True)
    time.sleep(60)
"""


def reports(text: str) -> list[dict[str, Any]]:
    """Return what the tasks printed about themselves."""
    records = [line.partition("{") for line in text.splitlines() if '"config"' in line]
    return [json.loads(brace + rest) for _, brace, rest in records]


class Pair:
    """Two processes that a user starts by hand."""

    def __init__(self, program: Program, temporary: Path) -> None:
        self.program = program
        self.temporary = temporary
        program.env["TMPDIR"] = str(temporary)
        # As in an activated virtual environment: its interpreter is the first, so that no other one is probed.
        program.env["PATH"] = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
        program.script("task.py", TASK)

    def start(
        self, rank: int, *words: str, options: tuple[str, ...] = (), size: int = 2, env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        rendezvous = () if "--rendezvous" in options else ("--rendezvous", "rendezvous")
        command = ("agent", "--rank", str(rank), "--size", str(size), *rendezvous, *options)
        return self.program.start(*command, "task.py", "--", *words, env=env)

    def run(
        self, *words: str, options: tuple[str, ...] = (), code: int | None = 0, **env: str
    ) -> list[CommandResult]:
        started = [self.start(rank, *words, options=options, env=env) for rank in (0, 1)]
        return [self.program.finish(process, code=code) for process in started]

    def leftovers(self) -> list[str]:
        return sorted(path.name for path in self.program.directory.iterdir() if path.name != "task.py")


@pytest.fixture
def pair(program: Program, tmp_path: Path) -> Iterator[Pair]:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    yield Pair(program, temporary)
    assert list(temporary.iterdir()) == []
    mark = f"TMPDIR={temporary}"
    # The kernel ends some with their parent, which takes a moment; a process that had to be ended would stay longer.
    wait_for(
        "the end of all processes",
        lambda: not any(mark in environment_of(each) for each in psutil.process_iter()),
        deadline_s=3.0,
    )


def environment_of(process: psutil.Process) -> str:
    try:
        return "\n".join(f"{key}={value}" for key, value in process.environ().items())
    except (psutil.Error, OSError):
        return ""


def directory_with(directory: Path, script: str) -> Path:
    """Return a new directory that has the script."""
    directory.mkdir()
    (directory / "task.py").write_text(script)
    return directory


# --- by hand --------------------------------------------------------------------------------------------------------


def test_two_processes_find_each_other_and_run_in_their_directory(pair: Pair) -> None:
    first, second = pair.run("--epochs", "5")
    [first_task], [second_task] = reports(first.text), reports(second.text)
    tasks = [task["config"]["task"] for task in (first_task, second_task)]
    assert tasks == [{"type": "worker", "index": index} for index in (0, 1)]
    assert first_task["config"]["cluster"] == second_task["config"]["cluster"]
    assert first_task["directory"] == second_task["directory"] == first_task["PWD"] == str(pair.program.directory)
    assert first_task["arguments"] == ["--epochs", "5"]
    assert first_task["FLEET_CHECKPOINT_DIR"] == second_task["FLEET_CHECKPOINT_DIR"]
    assert first_task["FLEET_LOG_DIR"] != second_task["FLEET_LOG_DIR"]
    assert first.text.count("\n") == 1  # without the prefix of merged logs
    assert "started: task.py on worker-[0-1]" in first.err
    assert "succeeded" in first.err
    assert second.err == ""
    assert pair.leftovers() == []


def test_the_first_process_reports_the_failure_and_all_exit_with_the_same_code(pair: Pair) -> None:
    first, second = pair.run("fail-1-1", code=100)
    assert "job 20" in first.err
    assert re.search(r"failed: worker-1 \(\S+\) exited with", first.err)
    assert "it ends on purpose" in first.err
    assert "fleet logs" not in first.err
    assert second.err == ""
    assert "it ends on purpose" in second.text
    assert pair.leftovers() == []


def test_the_first_process_reports_tasks_that_train_alone(pair: Pair, tmp_path: Path) -> None:
    pair.program.script("task.py", test_isolated_tasks.TASK)
    continue_file = tmp_path / "go-on"
    processes = [pair.start(rank, "alone", str(continue_file)) for rank in (0, 1)]

    times: dict[str, set[float]] = {}

    def measured() -> bool:
        for path in map(str, find_paths(pair.temporary, "**/control")):
            usages = [record for record in control.query(path, 5) or [] if isinstance(record, Usage)]
            times.setdefault(path, set()).update(usage.at for usage in usages)
        return sum(len(seen) >= test_isolated_tasks.MEASURED for seen in times.values()) == 2

    try:
        wait_for("the inspections of the tasks by both agents", measured, 120)
    finally:
        continue_file.touch()
        first, second = [pair.program.finish(process) for process in processes]
    assert test_isolated_tasks.MESSAGE in " ".join(first.err.split())
    assert "trained alone" not in second.err


def test_a_restarted_job_copies_checkpoints_and_leaves_only_the_files_of_its_tasks(
    pair: Pair, tmp_path: Path, port: int
) -> None:
    """The processes share no directory: they meet at an address, and their hosts copy the checkpoints."""
    other = directory_with(tmp_path / "other", TASK)
    options = ("--rendezvous", f"tcp://127.0.0.1:{port}", "--restarts", "1")
    env = {"FLEET_RENDEZVOUS_SECRET": "0123456789abcdef"}
    started = [
        pair.start(0, "save", "fail-1-1", options=options, env=env),
        pair.start(1, "save", "fail-1-1", options=(*options, "--workdir", str(other)), env=env),
    ]
    first, second = (reports(pair.program.finish(process).text) for process in started)
    assert first[-1]["attempt"] == 2
    assert [task["attempt"] for task in second] == [1, 2]
    assert {task["secret"] for task in first + second} == {None}
    directories = [Path(str(tasks[-1]["FLEET_CHECKPOINT_DIR"])) for tasks in (first, second)]
    assert directories[0] != directories[1]
    assert {path.name: path.read_text() for path in directories[0].iterdir()} == {"ckpt": "saved"}
    assert len(pair.leftovers()) == 1


@pytest.mark.parametrize("rank_to_stop", [0, 1])
def test_a_signal_to_one_process_stops_the_job(pair: Pair, rank_to_stop: int) -> None:
    started = [pair.start(rank, "sleep") for rank in (0, 1)]
    for process in started:
        assert process.stdout is not None
        while process.stdout.readline() != b"sleeping\n":
            assert process.poll() is None
    started[rank_to_stop].send_signal(signal.SIGTERM)
    first, second = (pair.program.finish(process, code=103) for process in started)
    assert "was stopped" in first.err
    assert second.err == ""


def test_a_signal_ends_a_process_that_waits_for_the_others(pair: Pair) -> None:
    waiting = pair.start(0)
    wait_for("the rendezvous", lambda: list((pair.program.directory / "rendezvous").glob("call")) or None)
    waiting.send_signal(signal.SIGTERM)
    assert "interrupted; nothing was started" in pair.program.finish(waiting, code=103).err
    assert pair.leftovers() == []


def test_a_process_that_does_not_join_is_named(pair: Pair) -> None:
    ran = pair.program.finish(pair.start(0, options=("--wait", "1s", "--nodes", "gpu[1-2]")), code=14)
    assert "timed out after 1 s waiting for gpu2 (rank 1) in " in ran.err
    assert "it has not started, uses another directory, or cannot connect" in " ".join(ran.err.split())
    assert reports(ran.text) == []


def test_different_scripts_are_reported_before_any_task_starts(pair: Pair, tmp_path: Path) -> None:
    other = directory_with(tmp_path / "other", TASK + "# changed\n")
    rendezvous = ("--rendezvous", str(tmp_path / "rendezvous"))
    started = [pair.start(0, options=rendezvous), pair.start(1, options=(*rendezvous, "--workdir", str(other)))]
    first, second = (pair.program.finish(process, code=14) for process in started)
    assert "the content of task.py on " in first.err
    assert "(rank 1) is not that of " in first.err
    assert second.err == ""
    assert first.out == second.out == b""
    assert not list(other.glob("20*"))


def test_a_missing_interpreter_is_reported_by_its_host_and_no_task_starts(pair: Pair) -> None:
    started = [pair.start(0), pair.start(1, options=("--python", "/no/such/python"))]
    first, second = (pair.program.finish(process, code=14) for process in started)
    assert "/no/such/python on this host does not run" in second.err
    assert first.err == ""
    assert first.out == second.out == b""


def test_a_checkpoint_directory_that_only_some_hosts_share_is_refused(pair: Pair, tmp_path: Path) -> None:
    other = directory_with(tmp_path / "other", TASK)
    rendezvous = ("--rendezvous", str(tmp_path / "rendezvous"))
    started = [pair.start(rank, options=rendezvous, size=3) for rank in (0, 1)]
    started.append(pair.start(2, options=(*rendezvous, "--workdir", str(other)), size=3))
    ran = [pair.program.finish(process, code=14) for process in started]
    assert "the checkpoint directory is shared by " in ran[0].err
    assert ran[0].err.index("(rank 0), ") < ran[0].err.index("(rank 1), but not by ") < ran[0].err.index("(rank 2)\n")
    assert ran[1].err == ran[2].err == ""
    assert [result.out for result in ran] == [b"", b"", b""]
    assert list(other.iterdir()) == [other / "task.py"]
    assert pair.leftovers() == []


def test_a_job_that_is_started_again_finds_its_checkpoints(pair: Pair) -> None:
    env = {"SLURM_JOB_ID": "77", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    for words in (("save",), ()):
        [task] = reports(pair.program.run("agent", "task.py", "--", *words, env=env).text)
        assert task["FLEET_CHECKPOINT_DIR"] == str(pair.program.directory / "fleet-77" / "checkpoints")
        assert (pair.program.directory / "fleet-77" / "checkpoints" / "ckpt").read_text() == "saved"
    assert pair.leftovers() == ["fleet-77"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("task.py", "rank and size of this process are unknown"),
        ("--rank 0 --size 1 task.py", "no rendezvous is given"),
        ("--rank 0 --size 1 --rendezvous m no.py", "does not exist"),
        ("--rank 0 --size 1 --workdir no task.py", "does not exist on this node"),
        ("--rank 0 --size 1 --rendezvous tcp://x task.py", "is not an address"),
        ("--rank 0 --size 2 --rendezvous tcp://127.0.0.1:29400 task.py", "requires a secret of at least 16"),
    ],
)
def test_invalid_arguments_are_refused(pair: Pair, arguments: str, reason: str) -> None:
    ran = pair.program.run("agent", *arguments.split(), code=None)
    assert ran.code in (2, 14)
    assert reason in ran.err
    assert ("export FLEET_RENDEZVOUS_SECRET" in ran.err) == ("secret" in reason)
    assert pair.leftovers() == []


def test_up_outside_of_an_allocation_reports_how_to_get_one(pair: Pair) -> None:
    for provider, name, command in (("slurm", "Slurm", "salloc -N 2"), ("pbs", "PBS", "qsub -I")):
        ran = pair.program.run("up", "--provider", provider, code=2)
        assert f"not inside a {name} allocation" in ran.err
        assert command in ran.err
        ran = pair.program.run("doctor", "--provider", provider, code=None)
        assert f"not inside a {name} allocation" in ran.text + ran.err


# --- a stand-in for PBS ---------------------------------------------------------------------------------------------


def test_a_job_script_for_the_pbs_stand_in_trains_with_a_task_per_node(pair: Pair, tmp_path: Path) -> None:
    stand_in = StandIn.make(tmp_path / "pbs", "n0\nn0\nn1\n")
    script = pair.program.script("job.sh", f"#!/bin/sh\n#PBS -l select=2\npbsdsh -- '{PROGRAM}' agent task.py -- a\n")
    env = pair.program.environment({"PATH": f"{stand_in.programs}{os.pathsep}{pair.program.env['PATH']}"})
    run = partial(subprocess.run, cwd=pair.program.directory, env=env, capture_output=True, text=True, timeout=60)
    done = run(["qsub", str(script)], check=False)
    assert done.returncode == 0, done.stderr
    tasks = sorted(reports(done.stdout), key=lambda task: task["config"]["task"]["index"])
    assert [task["config"]["task"]["index"] for task in tasks] == [0, 1]
    assert {task["directory"] for task in tasks} == {str(pair.program.directory)}
    assert all("/fleet-7.stand-in/" in str(task["FLEET_CHECKPOINT_DIR"]) for task in tasks)
    assert "job fleet-7.stand-in succeeded" in done.stderr
    assert pair.leftovers() == ["job.sh"]


# --- Slurm ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Start two nodes of a real Slurm, shared by the tests of this file."""
    if reason := obstacle():
        pytest.skip(reason)
    with slurm(tmp_path_factory.mktemp("slurm")) as slurm_cluster:
        slurm_cluster.script("task.py", TASK)
        slurm_cluster.env["TMPDIR"] = str(slurm_cluster.directory / "tmp")
        (slurm_cluster.directory / "tmp").mkdir()
        yield slurm_cluster


def leftovers(cluster: Slurm) -> list[str]:
    """Return what jobs left in the working directory and in the directory for temporary files."""
    expected = {"task.py", "job.sh", "out"}
    paths = [path for directory in (cluster.work, cluster.directory / "tmp") for path in directory.iterdir()]
    return [str(path) for path in paths if path.name not in expected]


def test_an_sbatch_script_trains(cluster: Slurm) -> None:
    script = cluster.script(
        "job.sh", "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=1\nsrun fleet agent task.py -- --epochs 5\n"
    )
    [job] = cluster.run("sbatch", "--parsable", "-o", "out", str(script)).text.split()
    out = cluster.work / "out"
    wait_for("the job's end", lambda: out.exists() and f"fleet-{job}.0 succeeded" in out.read_text())
    tasks = reports(out.read_text())
    addresses = [host.address for host in cluster.hosts]
    for task in tasks:
        cluster_spec = task["config"]["cluster"]
        assert cluster_spec == {"worker": [f"{address}:2222" for address in addresses]}
        assert task["directory"] == str(cluster.work)
    assert len(tasks) == 2
    wait_for("an empty queue", cluster.has_no_jobs)
    assert leftovers(cluster) == []


def test_srun_exits_with_the_exit_code_of_the_job(cluster: Slurm) -> None:
    ran = cluster.run(
        "srun", "-l", "-N2", "--ntasks-per-node=1", "fleet", "agent", "task.py", "--", "raise", code=100
    )
    assert "0: error: job fleet-" in ran.err
    assert f"worker-1 ({cluster.hosts[1].address}) raised ValueError: on purpose" in ran.err
    assert "1: fleet:" not in ran.err
    assert leftovers(cluster) == []


def test_scancel_stops_the_job_on_all_nodes(cluster: Slurm) -> None:
    running = cluster.start("srun", "-N2", "--ntasks-per-node=1", "fleet", "agent", "task.py", "--", "sleep")
    assert running.stdout is not None
    seen = 0
    while seen < 2:
        seen += running.stdout.readline() == b"sleeping\n"
        assert running.poll() is None
    [job] = cluster.run("squeue", "-h", "-o", "%i").text.split()
    cluster.run("scancel", job)
    ran = cluster.finish(running, code=None)
    # Each node gets the signal; the job may end before the first node gets it.
    assert re.search(rf"(?m)error: job fleet-{job}\.0 was stopped( by SIGTERM)?$", ran.err)
    assert "Exited with exit code 103" in ran.err
    wait_for("an empty queue", cluster.has_no_jobs)
    assert leftovers(cluster) == []


def test_a_node_that_does_not_join_is_named_as_in_slurm(cluster: Slurm) -> None:
    command = 'test "$SLURM_PROCID" = 1 || exec fleet agent --wait 1s task.py'
    ran = cluster.run("srun", "-N2", "--ntasks-per-node=1", "sh", "-c", command, code=14)
    assert "timed out after 1 s waiting for node1 (rank 1) in " in ran.err
    assert leftovers(cluster) == []


def test_an_agent_in_an_allocation_without_srun_is_refused(cluster: Slurm) -> None:
    ran = cluster.run("salloc", "-N2", "fleet", "agent", "task.py", code=2)
    assert "did not start this process on all its nodes" in ran.err
    assert "srun fleet agent task.py" in ran.err


def test_several_tasks_per_node_meet_at_an_address(cluster: Slurm) -> None:
    words = ("srun", "-N2", "-n3", "--overcommit", "fleet", "agent", "--rendezvous", "tcp://:29400", "task.py")
    ran = cluster.run(*words, env={"FLEET_RENDEZVOUS_SECRET": "0123456789abcdef"})
    tasks = reports(ran.text)
    assert len(tasks) == 3
    [spec] = {json.dumps(task["config"]["cluster"]) for task in tasks}
    endpoints = json.loads(spec)["worker"]
    assert len(set(endpoints)) == 3
    assert {endpoint.partition(":")[0] for endpoint in endpoints} == {host.address for host in cluster.hosts}
    assert leftovers(cluster) == []


def test_node_lists_expand_as_in_scontrol(cluster: Slurm) -> None:
    for expression in ("node[0-1]", "gpu[01-03,7],login1", "a[1-2]b[3-4]", "n[8-11]", "n[008-011]", "x1,x[1-3],x2"):
        theirs = cluster.run("scontrol", "show", "hostnames", expression).text.split()
        assert list(expand_nodelist(expression)) == list(dict.fromkeys(theirs)), expression


# --- over SSH -------------------------------------------------------------------------------------------------------

OVER_SSH = """\
set -e
fleet up --provider slurm
fleet train task.py -- over ssh
fleet up --provider slurm
fleet status
"""


@pytest.fixture(scope="module")
def reachable(cluster: Slurm) -> Slurm:
    cluster.enable_ssh()
    return cluster


def test_the_nodes_of_an_allocation_form_a_fleet_over_ssh_until_it_ends(reachable: Slurm) -> None:
    script = reachable.script("job.sh", OVER_SSH)
    ran = reachable.run("salloc", "-Q", "-N2", "sh", "-c", f". {script}", timeout=90)
    tasks = reports(ran.text)
    assert [task["arguments"] for task in tasks] == [["over", "ssh"]] * 2
    for task in tasks:
        endpoints = task["config"]["cluster"]["worker"]
        assert [endpoint.partition(":")[0] for endpoint in endpoints] == [host.address for host in reachable.hosts]
    assert "was already up; every host answers" in ran.err
    assert "node0" in ran.text

    ran = reachable.run("salloc", "-Q", "-N2", "fleet", "up", "--provider", "slurm", code=2)
    assert "hosts of slurm:" in ran.err  # those of another allocation
    assert "next:  fleet down\n" in ran.err
    reachable.run("fleet", "down", "--yes")
    # Both nodes share one login directory, from which the fleet's files are deleted.
    assert [path for path in (reachable.directory / "home").rglob("*") if path.is_file()] == []
    assert not list((reachable.directory / "fleet" / "static").rglob("*.json"))


def test_more_workers_than_nodes_are_refused(reachable: Slurm) -> None:
    ran = reachable.run("salloc", "-Q", "-N2", "fleet", "up", "--provider", "slurm", "--workers", "3", code=2)
    assert "3 workers requested, but it has 2 hosts" in ran.err


def test_a_host_listed_twice_in_a_pbs_node_file_is_one_worker(reachable: Slurm) -> None:
    nodes = reachable.directory / "nodes"
    nodes.write_text("node1\nnode1\nnode0\n")
    env = {"PBS_JOBID": "7.stand-in", "PBS_NODEFILE": str(nodes)}
    ran = reachable.run("fleet", "up", "--provider", "pbs", "--dry-run", env=env)
    assert "worker-0 would be node1, worker-1 would be node0" in ran.err
    ran = reachable.run("fleet", "up", "--provider", "pbs", "--inventory", str(nodes), env=env, code=2)
    other = f"fleet up --provider static --inventory {nodes}"
    assert ran.err.endswith(f"next:  {other}\n       fleet up --provider pbs\n")
