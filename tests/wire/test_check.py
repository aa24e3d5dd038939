"""`fleet check` on real hosts, with scripts that need no TensorFlow."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

from tests.process.train.agent.hosts import fake_python
from tests.program import Program

pytestmark = pytest.mark.wire

STEPS = """
import json, os, sys, time
config = json.loads(os.environ["TF_CONFIG"])
assert len(config["cluster"]["worker"]) == 1 and config["task"]["index"] == 0, config
assert sys.argv[1:] == ["--epochs", "3"]
for step in range(1, 600):
    print(f"step {step} loss {1 / step}", flush=True)
    time.sleep(0.1)
"""


def test_check_runs_the_script_on_each_host_until_its_first_step(pair: Program) -> None:
    alone = pair.run("check")
    assert "ok       hosts are ready" in alone.text
    assert alone.text.splitlines()[1].split()[:4] == ["HOST", "PYTHON", "TENSORFLOW", "KERAS"]
    assert [line.split()[0] for line in alone.text.splitlines()[2:4]] == ["worker-0", "worker-1"]

    pair.script("task.py", STEPS)
    tried = pair.run("check", "task.py", "--local-first", "-o", "json", "--", "--epochs", "3").events
    ends = [event for event in tried if event["event"] == "smoke_tested"]
    assert [(end["host"], end["ok"]) for end in ends] == [("worker-0", True), ("worker-1", True)]
    assert all("made its first step" in end["message"] for end in ends)
    assert not pair.tasks()
    assert not list((pair.state / "local").glob("*/fleet/jobs/*/*"))
    pair.run("logs", code=102)  # no job was created

    pair.script(
        "task.py", "import os\nprint('about to fail')\nif os.path.realpath('.').count('worker-1/'): exit('no data')\n"
    )
    failed = pair.run("check", "--local-first", "30s", "task.py", code=14)
    assert "ok       worker-0: the script ended after" in failed.text
    assert "failed   worker-1: the script exited with code 1" in failed.text
    assert "no data" in failed.text
    assert "is not ready for task.py" in failed.err


# Its first step is printed before it uses TensorFlow.
FAILS = """
import time
print("step 1 loss 0.5", flush=True)
time.sleep(60)
import tensorflow as tf
tf.constant(1)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
"""


def test_a_script_with_lint_errors_is_not_ok(pair: Program) -> None:
    pair.script("task.py", FAILS)
    message = "task.py:7: MultiWorkerMirroredStrategy is created after tf.constant (line 6)"
    assert "MW101 error" in pair.run("lint", "task.py", code=2).text
    checked = " ".join(pair.run("check", "task.py", code=14).text.split())
    assert f"problem {message}" in checked
    assert "ok " not in checked
    tried = pair.run("check", "task.py", "--local-first", code=14)
    assert f"it works alone, but not with 2 workers: {message}" in " ".join(tried.err.split() + tried.text.split())
    assert "MW101" in pair.run("train", "--dry-run", "task.py").err


def test_a_changed_path_does_not_turn_the_import_check_off(pair: Program) -> None:
    pair.script("task.py", "import sys\nsys.path.insert(0, 'lib')\nimport nowhere_at_all\nimport near\n")
    pair.script("lib/near.py", "")
    for options in ((), ("-e", "PYTHONPATH=lib")):
        checked = " ".join(pair.run("check", *options, "task.py", code=14).text.split())
        assert "problem task.py:3 imports nowhere_at_all, which worker-[0-1] lack; push it with the script" in checked
        assert "not checked whether these can be imported: near (task.py:4)" in checked


def test_a_script_for_parameter_servers_is_refused_without_them(pair: Program) -> None:
    script = str(Path(__file__).parents[2] / "train" / "examples" / "parameter_server.py")
    refused = pair.run("train", script, "--", "--epochs", "1", code=2)
    assert "ParameterServerStrategy requires a chief and parameter servers" in " ".join(refused.err.split())
    command = " ".join(refused.err.partition("next:")[2].split()[:8])
    assert command == f"fleet train --chief --ps 1 --tasks-per-host 2 {script}"
    pair.run("logs", code=102)  # nothing was started
    assert "MW108 hint" in pair.run("lint", script).text


def test_an_image_data_generator_requires_scipy_before_the_start(pair: Program) -> None:
    pair.script(
        "task.py", "from keras.preprocessing.image import ImageDataGenerator as Flow\nFlow(rescale=1 / 255)\n"
    )
    advice = "task.py:2 requires scipy, which worker-[0-1] lack; add scipy to pyproject.toml or requirements.txt next"
    is_missing = importlib.util.find_spec("scipy") is None
    checked = " ".join(pair.run("check", "task.py", code=14 if is_missing else 0).text.split())
    assert (f"problem {advice}" in checked) is is_missing
    pair.script("pyproject.toml", '[project]\nname = "mine"\nversion = "1"\ndependencies = ["scipy>=1.13"]\n')
    listed = " ".join(pair.run("check", "task.py", code=None).text.split())
    assert "requires scipy" not in listed
    assert "installing the dependencies of pyproject.toml" in listed


def test_missing_modules_are_reported_with_their_hosts(pair: Program) -> None:
    pair.script("task.py", "import sys\nimport nowhere_at_all\nimport near\nraise SystemExit(9)\n")
    pair.script("near.py", "import adds.more\n")
    checked = pair.run("check", "task.py", "-o", "json", code=14).events
    (report,) = [event for event in checked if event["event"] == "hosts_checked"]
    assert [host["missing"] for host in report["hosts"]] == [["adds", "nowhere_at_all"]] * 2
    assert report["hosts"][0]["machine"] == os.uname().machine
    assert [text.partition(";")[0] for text in report["problems"]] == [
        "task.py:2 imports nowhere_at_all, which worker-[0-1] lack",
        "near.py:1 imports adds, which worker-[0-1] lack",
    ]
    pair.script("requirements.txt", "adds==1.0\n")
    listed = pair.run("check", "task.py", code=14)
    assert "adds" not in listed.text
    assert "nowhere_at_all" in listed.text
    no_program = pair.run("check", "--", "no-such-program", code=14)
    assert "problem  worker-[0-1]: no-such-program does not exist on this host" in no_program.text


def test_different_versions_of_tensorflow_are_reported(program: Program, tmp_path: Path) -> None:
    program.run("up", "--workers", "2")
    (record,) = [
        path for path in program.state.glob("fleets/default/*.json") if "hosts" in json.loads(path.read_text())
    ]
    values = json.loads(record.read_text())
    values["hosts"][1]["python"] = fake_python(tmp_path, python="3.11.7", tensorflow="2.19.1")
    record.write_text(json.dumps(values))
    ran = program.run("check", code=14)
    problem = " ".join(ran.text.split("problem")[1].split())
    assert problem.startswith("TensorFlow differs: 2.21 on worker-0 (")
    assert "2.19 on worker-1 (" in problem


def test_check_refuses_invalid_arguments(program: Program) -> None:
    assert "none is given" in program.run("check", "--local-first", code=2).err
    assert "the script none.py does not exist" in program.run("check", "none.py", code=2).err
    assert "does not exist" in program.run("check", code=102).err
