from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from train.agent.files.paths import TaskPaths
from train.agent.protocol.records import Member
from train.agent.supervisor.environment import HostEnvironment, TaskIdentity, task_environment

MEMBERS = [
    Member("worker-1", "worker-1", "10.0.0.3", 2222, 1),
    Member("ps-0", "ps-0", "10.0.0.9", 2222, 1),
    Member("chief-0", "chief-0", "10.0.0.2", 2223, 1),
    Member("worker-0", "worker-0", "fd00::4", 2222, 1),
]


def environment(
    session: dict[str, str] | None = None, user: dict[str, str] | None = None, host: HostEnvironment | None = None
) -> dict[str, str]:
    return task_environment(
        session or {},
        user or {},
        identity=TaskIdentity("tiny", "j1", "worker-1", 2, MEMBERS),
        paths=TaskPaths("/root/jobs/j1/worker-1"),
        host_environment=host or HostEnvironment(),
    )


def test_all_variables_of_a_task() -> None:
    variables = environment()
    assert json.loads(variables.pop("TF_CONFIG")) == {
        "cluster": {
            "chief": ["10.0.0.2:2223"],
            "worker": ["[fd00::4]:2222", "10.0.0.3:2222"],
            "ps": ["10.0.0.9:2222"],
        },
        "task": {"type": "worker", "index": 1},
    }
    assert variables == {
        "PYTHONUNBUFFERED": "1",
        "PWD": "/root/jobs/j1/worker-1/src",
        "FLEET_NAME": "tiny",
        "FLEET_JOB_ID": "j1",
        "FLEET_ATTEMPT": "2",
        "FLEET_TASK_TYPE": "worker",
        "FLEET_TASK_INDEX": "1",
        "FLEET_RANK": "2",
        "FLEET_NUM_TASKS": "4",
        "FLEET_ADDRESSES": "10.0.0.2:2223,[fd00::4]:2222,10.0.0.3:2222,10.0.0.9:2222",
        "FLEET_CHECKPOINT_DIR": "/root/jobs/j1/worker-1/checkpoints",
        "FLEET_LOG_DIR": "/root/jobs/j1/worker-1/logs",
        "FLEET_MODEL_DIR": "/root/jobs/j1/worker-1/model",
        "FLEET_TASK_DIRECTORY": "/root/jobs/j1/worker-1",
        "AIP_CHECKPOINT_DIR": "/root/jobs/j1/worker-1/checkpoints",
        "AIP_TENSORBOARD_LOG_DIR": "/root/jobs/j1/worker-1/logs",
        "AIP_MODEL_DIR": "/root/jobs/j1/worker-1/model",
    }


def test_the_documentation_names_every_variable() -> None:
    page = (Path(__file__).parents[5] / "docs" / "scripts.md").read_text()
    table = page.partition("## Environment of a task")[2].partition("## ")[0]
    named = {name for name in environment() if name.startswith(("FLEET_", "AIP_"))}
    assert {name for name in named if f"`{name}`" not in table} == {"FLEET_TASK_DIRECTORY"}  # marks the process


def test_the_user_wins_over_the_session_and_over_us_but_for_tf_config() -> None:
    user = {"PYTHONUNBUFFERED": "", "FLEET_LOG_DIR": "gs://b/logs", "TF_CONFIG": "{}", "HOME": "/user"}
    variables = environment({"HOME": "/session", "LANG": "C", "TF_CPP_MIN_LOG_LEVEL": "2"}, user)
    assert variables["PYTHONUNBUFFERED"] == ""
    assert variables["FLEET_LOG_DIR"] == "gs://b/logs"
    assert variables["HOME"] == "/user"
    assert variables["LANG"] == "C"
    assert variables["TF_CPP_MIN_LOG_LEVEL"] == "2"
    assert json.loads(variables["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}


def test_a_proxy_stays_out_of_the_way_between_tasks() -> None:
    variables = environment({"http_proxy": "http://proxy:3128", "NO_PROXY": "intern, 10.0.0.3", "no_grpc_proxy": "x"})
    assert variables["http_proxy"] == "http://proxy:3128"
    assert variables["no_proxy"] == "intern,10.0.0.3,10.0.0.9,10.0.0.2,fd00::4,localhost,127.0.0.1,::1"
    assert variables["NO_PROXY"] == variables["no_proxy"]
    assert variables["no_grpc_proxy"].startswith("x,10.0.0.3,")


@pytest.mark.parametrize("session", [{}, {"no_proxy": "intern"}, {"http_proxy": ""}])
def test_no_proxy_is_left_alone_without_a_proxy(session: dict[str, str]) -> None:
    variables = environment(session)
    assert (variables.get("no_proxy"), variables.get("NO_PROXY")) == (session.get("no_proxy"), None)


def test_the_interpreter_comes_first_on_the_path() -> None:
    host = HostEnvironment("/venv/bin/python", ("/job/bin", "/venv/bin"))
    variables = environment({"PATH": "/usr/bin"}, host=host)
    assert (variables["PATH"], variables["RETICULATE_PYTHON"]) == ("/job/bin:/venv/bin:/usr/bin", "/venv/bin/python")
    assert environment(host=host)["PATH"] == "/job/bin:/venv/bin:" + os.defpath
    mine = environment({"PATH": "/usr/bin"}, {"PATH": "/own", "RETICULATE_PYTHON": "/r"}, host)
    assert (mine["PATH"], mine["RETICULATE_PYTHON"]) == ("/own", "/r")


def test_nccl_gets_the_interface_if_there_are_gpus() -> None:
    with_gpu = HostEnvironment(interface="ens4", gpus=1)
    given = {"NCCL_SOCKET_IFNAME": "^lo", "NCCL_DEBUG": "INFO"}
    for variables, expected in (
        (environment(host=HostEnvironment(interface="ens4")), {}),
        (environment(host=with_gpu), {"NCCL_SOCKET_IFNAME": "=ens4", "NCCL_DEBUG": "WARN"}),
        (environment(host=HostEnvironment(gpus=1)), {"NCCL_DEBUG": "WARN"}),
        (environment(given, host=with_gpu), given),
        (environment(user=given, host=with_gpu), given),
    ):
        assert {name: value for name, value in variables.items() if name.startswith("NCCL")} == expected
