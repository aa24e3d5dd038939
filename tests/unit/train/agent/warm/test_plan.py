"""Test which imports a warm process executes, and which tasks it may be forked for."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from train.agent.warm.plan import Plan, Process, Program, first_statements, make_plan, read_program

SCRIPT = '''"""Train."""
from __future__ import annotations
import os, sys
import numpy as np
from tensorflow.keras import layers, models as m

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ.setdefault("A", "b")
BATCH = 64
import tensorflow as tf, json
import mine
import keras
'''
PROGRAM = Program("task.py", "/root/jobs/j1/worker-0/src", 2, ((1, "import tensorflow"),), ("tensorflow",))
PROCESS = Process()
ENV = {"PATH": "/bin", "TF_CONFIG": "{}", "FLEET_RANK": "0", "XLA_FLAGS": "--a", "BIN": "/root/jobs/j1/worker-0/bin"}
COMMAND = ["/usr/bin/python3", "task.py", "--epochs", "5"]


def plan(
    command: list[str] = COMMAND,
    env: dict[str, str] = ENV,
    program: Program = PROGRAM,
    process: Process = PROCESS,
    task: str = "/root/jobs/j1/worker-0",
) -> Plan:
    return make_plan(command, env, program, process, root="/root/warm", task=task)


def test_the_statements_are_imports_of_frameworks_and_constant_variables() -> None:
    statements, modules = first_statements(ast.parse(SCRIPT))
    assert statements == [
        (4, "import numpy"),
        (5, "from tensorflow.keras import layers, models"),
        (7, "import os; os.environ['TF_CPP_MIN_LOG_LEVEL'] = '2'"),
        (8, "import os; os.environ.setdefault('A', 'b')"),
        (10, "import tensorflow"),
    ]
    assert modules == ["numpy", "tensorflow"]


def test_packages_with_libraries_are_imported_in_the_order_of_the_script() -> None:
    statements, _ = first_statements(ast.parse("import sklearn.svm\nimport yaml, jax\nimport pandas, torch.nn\n"))
    expected = [(1, "import sklearn.svm"), (2, "import jax"), (3, "import pandas"), (3, "import torch.nn")]
    assert statements == expected


@pytest.mark.parametrize(
    "first",
    [
        "import mine",
        "from . import mine",
        "from tensorflow import *",
        "print()",
        "os.environ['A'] = str(1)",
        "os.environ.update(A='b')",
        "os.environ.setdefault('A', value)",
        "if True:\n    import tensorflow",
        "__name__ = 'other'",
        "def f(a=print()): pass",
        "A = b",
        "with open('a'): pass",
    ],
)
def test_other_code_ends_the_statements(first: str) -> None:
    assert first_statements(ast.parse(f"{first}\nimport tensorflow")) == ([], [])


def test_variables_that_no_import_follows_are_left_to_the_script() -> None:
    statements, _ = first_statements(ast.parse("import os, keras\nos.environ['A'] = 'b'\nprint()"))
    assert statements == [(1, "import keras")]


@pytest.mark.parametrize(
    ("script", "obstacle"),
    [
        ("import numpy", "the script does not begin with the import of tensorflow, tf_keras, keras, jax, or torch"),
        ("def (", "the script cannot be parsed"),
        ("import a\0", "the script cannot be parsed"),
        (None, "the script is not a file of Python"),
    ],
)
def test_a_script_without_such_imports_starts_cold(tmp_path: Path, script: str | None, obstacle: str) -> None:
    if script is not None:
        (tmp_path / "task.py").write_text(script)
    assert read_program(["python", "task.py"], str(tmp_path)).obstacle == obstacle


def test_a_module_starts_warm_if_its_packages_run_nothing_before_it(tmp_path: Path) -> None:
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "task.py").write_text("import keras")
    program = read_program(["python", "-m", "trainer.task", "a"], str(tmp_path))
    assert (program.words, program.statements, program.first_path) == (3, ((1, "import keras"),), str(tmp_path))
    (package / "__init__.py").write_text("import os")
    assert read_program(["python", "-m", "trainer.task"], str(tmp_path)).obstacle


def test_a_package_with_the_name_of_the_module_is_what_python_runs(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("import keras")
    assert not read_program(["python", "-m", "task"], str(tmp_path)).obstacle
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "__init__.py").touch()
    assert read_program(["python", "-m", "task"], str(tmp_path)).obstacle


def test_attempts_and_jobs_share_a_warm_process() -> None:
    other_env = {**ENV, "TF_CONFIG": "x", "FLEET_RANK": "1", "BIN": "/root/jobs/j2/worker-0/bin", "SSH_TTY": "t"}
    other_program = PROGRAM._replace(first_path="/elsewhere", statements=((9, "import tensorflow"),))
    other = plan([*COMMAND[:2], "other"], other_env, other_program, task="/root/jobs/j2/worker-0")
    assert other.key == plan().key != ""
    sessions = [Process(group=f"0::/user.slice/session-{number}.scope") for number in (3, 4)]
    assert plan(process=sessions[0]).key == plan(process=sessions[1]).key != plan().key


@pytest.mark.parametrize(
    "other",
    [
        plan(["/usr/bin/python3", "b.py"]),
        plan(["/opt/python", "task.py"]),
        plan(env={**ENV, "XLA_FLAGS": "--b"}),
        plan(env={**ENV, "FLEET_ADAPT": "keras"}),
        plan(env={name: ENV[name] for name in ENV if name != "XLA_FLAGS"}),
        plan(program=PROGRAM._replace(statements=((1, "import keras"),))),
        plan(process=Process(nice=5)),
        plan(process=Process(limits=((1, 1),))),
        plan(process=Process(status=("NoNewPrivs:\t1",))),
        plan(process=Process(keys=("1a2b3c4d",))),
        plan(process=Process(group="0::/system.slice/slurm/job_1")),
    ],
)
def test_whatever_changes_an_import_needs_another_warm_process(other: Plan) -> None:
    assert other.key
    assert other.key != plan().key


@pytest.mark.parametrize("path", ["", ".", "lib", "/a:", "/root/jobs/j1/worker-0/src/lib"])
def test_modules_of_the_job_start_cold(path: str) -> None:
    assert plan(env={**ENV, "PYTHONPATH": path}) == Plan(obstacle="PYTHONPATH names a directory of the job")


def test_the_text_names_the_variables_of_the_job_and_all_statements() -> None:
    made = plan(env={**ENV, "PYTHONPATH": "/lib"})
    assert made.text.split("\n") == [
        "/root/warm",
        made.key,
        "task.py",
        PROGRAM.first_path,
        "TF_CONFIG,FLEET_RANK",
        "tensorflow",
        "1 import tensorflow",
    ]
    assert plan(program=PROGRAM._replace(first_path="/a\nb")).obstacle == "a path contains a line break"
