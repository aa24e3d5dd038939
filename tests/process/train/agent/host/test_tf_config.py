"""Test which TF_CONFIG TensorFlow's resolver reads in scripts that set one, with a stand-in for TensorFlow."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.process.train.agent.processes import hook_in, process, script_in
from train.agent.files.paths import TaskPaths
from train.agent.protocol.records import Member
from train.agent.supervisor.environment import TaskIdentity, task_environment
from train.lint.linter import job_tf_config
from train.script.keras import tf_config_of_r
from train.script.source import source_of

RESOLVER = """
import json, os

class TFConfigClusterResolver:
    def __init__(self):
        self.seen = os.environ.get("TF_CONFIG")

    def cluster_spec(self):
        return json.loads(os.environ.get("TF_CONFIG", "{}"))
"""
TENSORFLOW = """
from tensorflow.python.distribute.cluster_resolver.tfconfig_cluster_resolver import TFConfigClusterResolver

class distribute:
    @staticmethod
    def MultiWorkerMirroredStrategy():
        config = TFConfigClusterResolver().cluster_spec()
        print("resolved", config.get("cluster", {}).get("worker"), config.get("task"), flush=True)
"""
JOB = ["10.0.0.2:2222", "10.0.0.3:2222"]
HOSTS = '"172.17.0.6:1", "172.17.0.3:2", "172.17.0.4:3"'
OWN = f'{{"cluster": {{"worker": [{HOSTS}]}}, "task": {{"type": "worker", "index": 0}}}}'
DUMPED = "json.dumps({'cluster': {'worker': ['a:1', 'b:1', 'c:1']}, 'task': {'type': 'worker', 'index': rank}})\n"
BEGIN = "import argparse, json, os, sys\n"
END = "import tensorflow as tf\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
REPORT = "fleet: the script sets TF_CONFIG (task.py:%d): using this job's, 2 workers; `--no-adapt` turns this off"


def tensorflow_in(directory: Path) -> None:
    """Write a package that reads TF_CONFIG as TensorFlow does."""
    package = directory / "tensorflow"
    inner = package / "python" / "distribute" / "cluster_resolver"
    inner.mkdir(parents=True)
    (package / "__init__.py").write_text(TENSORFLOW)
    (inner / "tfconfig_cluster_resolver.py").write_text(RESOLVER)


def seen(
    directory: Path,
    script: str,
    adaptation: str | None = None,
    *,
    task: str = "worker-0",
    shell: str = "",
    has_tensorflow: bool = False,
    **user: str,
) -> list[str]:
    """Return the lines that a script prints in a task of two workers, adapted as `fleet train` decides.

    Args:
        directory: Of the script and its files.
        script: Its text.
        adaptation: Replaces the decision.
        task: The task.
        has_tensorflow: Whether the directory contains a stand-in already.
        shell: Command of a shell that runs the script, in place of the interpreter.
        user: Variables of the job.
    """
    if not has_tensorflow:
        tensorflow_in(directory)
    modules = [source_of(path.name, path.read_bytes()) for path in directory.glob("*.py")]
    decided = job_tf_config([source_of("task.py", script.encode()), *modules]) if adaptation is None else adaptation
    members = [
        Member(name, name, f"10.0.0.{index + 2}", 2222, 1) for index, name in enumerate(("worker-0", "worker-1"))
    ]
    env = task_environment(
        {"PATH": os.defpath},
        {"FLEET_ADAPT": decided, **user},
        identity=TaskIdentity("tiny", "j1", task, 1, members),
        paths=TaskPaths(str(directory)),
    )
    command = [sys.executable, script_in(directory, script)]
    with process() as child:
        child.task.start(["sh", "-c", shell] if shell else command, env, str(directory), 0o022, hook_in(directory))
        child.until(lambda: child.held)
        child.task.release()
        child.until(lambda: child.exits)
        return child.output.decode().splitlines()


def resolved(lines: list[str]) -> str:
    """Return the line with the cluster that the strategy uses."""
    return next(line for line in lines if line.startswith("resolved"))


@pytest.mark.parametrize(
    ("line", "script"),
    [
        (2, f"os.environ['TF_CONFIG'] = {OWN!r}\n"),
        (4, f"def make_config(rank):\n    return {OWN!r}\nos.environ['TF_CONFIG'] = make_config(0)\n"),
        (2, "os.environ['TF_CONFIG'] = json.dumps(json.load(open('tf_config.json')))\n"),
        (3, f"del os.environ['TF_CONFIG']\nos.environ.setdefault('TF_CONFIG', {OWN!r})\n"),
        (2, f"os.environ |= {{'TF_CONFIG': {OWN!r}}}\n"),
        (3, f"rank = int(os.environ.get('SLURM_PROCID', 0))\nos.environ['TF_CONFIG'] = {DUMPED}"),
        (2, "os.environ.update({k: json.dumps(v) for k, v in json.load(open('env.json')).items()})\n"),
        (4, f"import socket\nrank = len(socket.gethostname()) % 2\nos.environ['TF_CONFIG'] = {DUMPED}"),
    ],
)  # fmt: skip
def test_the_resolver_reads_the_tf_config_of_the_job(tmp_path: Path, line: int, script: str) -> None:
    (tmp_path / "tf_config.json").write_text(OWN)
    (tmp_path / "env.json").write_text(f'{{"TF_CONFIG": {OWN}}}')
    lines = seen(tmp_path, BEGIN + script + END + "print(json.loads(os.environ['TF_CONFIG'])['cluster']['worker'])\n")
    assert lines == [
        REPORT % line,
        "fleet: warning: the script's TF_CONFIG has 3 workers, this job has 2: check numbers that the script "
        "computes from it, such as the batch size",
        f"resolved {JOB} {{'type': 'worker', 'index': 0}}",
        str(JOB),
    ]


SET = "os.environ['TF_CONFIG'] = json.dumps({'cluster': {'worker': hosts}, 'task': task})\n"
DERIVED = {
    "ports": """
c = json.loads(os.environ['TF_CONFIG'])
c['cluster']['worker'] = [a.replace('2222', '4000') for a in c['cluster']['worker']]
os.environ['TF_CONFIG'] = json.dumps(c)
""",
    "an evaluator": """
if json.loads(os.environ['TF_CONFIG'])['task']['index'] == 0:
    os.environ['TF_CONFIG'] = '{"cluster": {"worker": ["10.0.0.3:4000"]}, "task": {"type": "evaluator", "index": 0}}'
""",
    "addresses": """
hosts = os.environ['FLEET_ADDRESSES'].replace('2222', '4000').split(',')
task = {'type': 'worker', 'index': int(os.environ['FLEET_RANK'])}
"""
    + SET,
    "a function": """
import re
def shift(text):
    return re.sub('2222', '4000', text)
os.environ['TF_CONFIG'] = shift(os.environ['TF_CONFIG'])
""",
    "all variables": """
for name, value in dict(os.environ).items():
    os.environ[name] = value.replace('2222', '4000')
""",
    "PMI": """
rank, size = int(os.environ['PMI_RANK']), int(os.environ['PMI_SIZE'])
hosts, task = ['10.0.0.%d:4000' % (i + 2) for i in range(size)], {'type': 'worker', 'index': rank}
"""
    + SET,
}


@pytest.mark.parametrize("name", DERIVED)
def test_a_tf_config_that_is_computed_from_the_job_is_kept(tmp_path: Path, name: str) -> None:
    lines = seen(tmp_path, BEGIN + DERIVED[name] + END, PMI_RANK="0", PMI_SIZE="2")
    assert len(lines) == 1
    assert "10.0.0.3:4000" in lines[0]


def test_the_line_of_a_module_is_reported(tmp_path: Path) -> None:
    (tmp_path / "cluster.py").write_text(f"import os\n\nos.environ['TF_CONFIG'] = {OWN!r}\n")
    assert "TF_CONFIG (cluster.py:3)" in seen(tmp_path, "import cluster\n" + END)[0]


@pytest.mark.parametrize(
    "script",
    [
        BEGIN + "os.environ.pop('TF_CONFIG', None)\n" + END,
        BEGIN + f"os.environ['TF_CONFIG'] = {OWN!r}\ndel os.environ['TF_CONFIG']\n" + END,
    ],
)
def test_a_script_that_removes_tf_config_trains_alone(tmp_path: Path, script: str) -> None:
    assert seen(tmp_path, script) == ["resolved None None"]


def test_processes_of_the_script_may_have_a_cluster_of_their_own(tmp_path: Path) -> None:
    script = (
        BEGIN + f"def train():\n    os.environ['TF_CONFIG'] = {OWN!r}\n    import tensorflow as tf\n    "
        "tf.distribute.MultiWorkerMirroredStrategy()\nimport multiprocessing\ncontext = multiprocessing.get_context("
        "'fork')\nchild = context.Process(target=train)\nchild.start()\nchild.join()\n"
    )
    assert "172.17.0.6:1" in resolved(seen(tmp_path, script, "tf_config::task.py:3"))


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"cluster": 3}'])
def test_an_invalid_tf_config_is_replaced(tmp_path: Path, text: str) -> None:
    lines = seen(tmp_path, BEGIN + f"os.environ['TF_CONFIG'] = {text!r}\n" + END)
    assert lines == [REPORT % 2, f"resolved {JOB} {{'type': 'worker', 'index': 0}}"]


R = """library(reticulate)
# Sys.setenv(TF_CONFIG = "a comment")
Sys.setenv(TF_CONFIG = jsonlite::toJSON(list(cluster = list(worker = c("172.17.0.6:1", "172.17.0.3:2")),
    task = list(type = 'worker', index = 0)), auto_unbox = TRUE))
tf <- import("tensorflow")
strategy <- tf$distribute$MultiWorkerMirroredStrategy()
"""


def test_the_python_of_an_r_script_reads_the_tf_config_of_the_job(tmp_path: Path) -> None:
    shell = f"TF_CONFIG='{OWN}' {sys.executable} task.py"  # R sets the variable before its Python starts
    lines = seen(tmp_path, END, tf_config_of_r(R, "task.R"), shell=shell)
    assert lines[0] == (REPORT % 3).replace("task.py", "task.R")
    assert lines[-1] == f"resolved {JOB} {{'type': 'worker', 'index': 0}}"


@pytest.mark.parametrize(
    ("text", "decision"),
    [
        (R, "tf_config::task.R:3"),
        ('Sys.setenv("TF_CONFIG" = x)\n', "tf_config::task.R:1"),
        ('os <- import("os")\nos$environ[["TF_CONFIG"]] <- x\n', "tf_config::task.R:2"),
        ('rank <- Sys.getenv("SLURM_PROCID")\nSys.setenv(TF_CONFIG = f(rank))\n', ""),
        ('old <- Sys.getenv("TF_CONFIG")\nSys.setenv(TF_CONFIG = f(old))\n', ""),
        ('Sys.setenv(OTHER = 1)\nprint("TF_CONFIG")\n', ""),
    ],
)
def test_r_scripts_that_set_tf_config_are_found(text: str, decision: str) -> None:
    assert tf_config_of_r(text, "task.R") == decision
