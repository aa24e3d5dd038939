"""Jobs without a plain script: modules, directories, shells, R; real sshd, the real agent, no TensorFlow."""

from __future__ import annotations

import http.server
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.interpreter import shared_interpreter
from tests.process.train.agent.index_server import serve
from tests.process.train.agent.wheels import wheel
from tests.program import CommandResult, Program, lines_of, read_files, task_config, wait_for

pytestmark = pytest.mark.wire


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Start a fleet of two hosts, whose interpreter has a package and a pip with its bytecode."""
    environment = tmp_path_factory.mktemp("environment")
    python = environment / "bin" / "python"
    subprocess.run([shared_interpreter(tmp_path_factory), "-m", "venv", "--without-pip", environment], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "existing.py").touch()
    program = Program(state=tmp_path_factory.mktemp("two") / "state", directory=tmp_path_factory.mktemp("work"))
    try:
        program.run("up", "--workers", "2", "--python", str(python))
        yield program
    finally:
        program.close()


SHOW = """
import json, os, sys
print("TF_CONFIG=" + os.environ["TF_CONFIG"])
print("SHOWN " + json.dumps({"argv": sys.argv[1:], "name": __name__, "package": __package__, "first": sys.path[0],
    "cwd": os.getcwd(), "exe": sys.executable, "who": WHO}), flush=True)
"""


def shown(ran: CommandResult, task: str) -> dict[str, object]:
    lines = lines_of(ran, task)
    assert task_config("\n".join(lines))["task"]["index"] == int(task[-1])
    (line,) = [line for line in lines if line.startswith("SHOWN ")]
    values: dict[str, object] = json.loads(line.partition(" ")[2])
    return values


def test_a_module_a_directory_and_a_shell_run_in_their_directories(pair: Program) -> None:
    pair.script("pkg/__init__.py", "")
    pair.script("pkg/near.py", "from . import other\nWHO = 'near ' + other.NAME\n")
    pair.script("pkg/other.py", "import top\nNAME = top.NAME\n")
    pair.script("pkg/task.py", "from .near import WHO\nimport pkg.near\n" + SHOW)
    pair.script("pkg/__main__.py", "WHO = 'main'\n" + SHOW)
    pair.script("top.py", "NAME = 'top'\n")
    pair.script("script.py", "import top\nWHO = top.NAME\n" + SHOW)
    pair.script("run.sh", 'set -e\ncd pkg\nexport PYTHONPATH=..:$PYTHONPATH\npython ../script.py from shell "$1"\n')

    ran = pair.run("train", "-m", "pkg.task", "--", "--epochs", "3 more")
    for task in ("worker-0", "worker-1"):
        values = shown(ran, task)
        assert values["who"] == "near top"
        assert (values["name"], values["package"]) == ("__main__", "pkg")
        assert values["argv"] == ["--epochs", "3 more"]
        assert values["first"] == values["cwd"]
        assert str(values["cwd"]).endswith(f"/{task}/src")
    assert "-m pkg.task on worker-[0-1]" in ran.err

    directory = shown(pair.run("train", "pkg", "--workdir", "."), "worker-1")
    assert (directory["who"], directory["package"]) == ("main", None)
    assert directory["first"] == f"{directory['cwd']}/pkg"

    shell = pair.run("train", "--", "bash", "run.sh", "a b")
    values = shown(shell, "worker-1")
    assert values["argv"] == ["from", "shell", "a b"]
    assert values["exe"] == directory["exe"]  # `python` is the interpreter of all jobs
    assert str(values["cwd"]).endswith("/worker-1/src/pkg")
    assert "bash run.sh 'a b' on worker-[0-1]" in shell.err

    plan = pair.run("train", "--dry-run", "-o", "json", "--", "python", "-u", "script.py").events
    commands = [event["command"] for event in plan if event["event"] == "task_planned"]
    assert commands == [shlex.join([str(directory["exe"]), "-u", "script.py"])] * 2


def test_a_shell_ends_with_all_its_child_processes(pair: Program) -> None:
    pair.script(
        "run.sh", "trap '' TERM\nsleep 600 &\npython -c 'import time; print(\"up\", flush=True); time.sleep(600)'\n"
    )
    client = pair.start("train", "--grace", "1", "--", "bash", "run.sh")
    wait_for("all processes", lambda: len(pair.tasks()) >= 6)
    wait_for("their output", lambda: all(pair.log_of(f"worker-{i}").stat().st_size for i in range(2)))
    (victim,) = [process for process in pair.tasks("worker-1") if process.name() == "bash"]
    victim.send_signal(signal.SIGKILL)
    wait_for("all tasks to end", lambda: not pair.tasks())
    assert "SIGKILL" in pair.finish(client, code=100).err


def test_a_program_that_fails_or_is_missing_is_reported(pair: Program) -> None:
    pair.script("run.sh", "echo about to fail\nexit 7\n")
    assert "7" in pair.run("train", "--", "bash", "run.sh", code=100).err
    missing = pair.run("train", "--", "no-such-program", "x", code=14)
    assert "worker-[0-1]: no-such-program does not exist on this host" in missing.err
    assert not pair.tasks()


R_TASK = """
arguments <- commandArgs(trailingOnly = TRUE)
cat(paste0("TF_CONFIG=", Sys.getenv("TF_CONFIG")), "\\n")
cat("R", arguments, basename(Sys.getenv("RETICULATE_PYTHON")), file.exists("near.csv"), "\\n")
"""


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="R is not installed (r-base-core)")
def test_an_r_script_runs(pair: Program) -> None:
    pair.script("jobs/task.R", R_TASK)
    pair.script("jobs/near.csv", "1\n")
    ran = pair.run("train", "jobs/task.R", "--", "five", "6")
    for index in (0, 1):
        lines = lines_of(ran, f"worker-{index}")
        assert task_config("\n".join(lines))["task"]["index"] == index
        assert [line.split()[:3] + line.split()[-1:] for line in lines if line.startswith("R ")] == [
            ["R", "five", "6", "TRUE"]
        ]
    assert "task.R on worker-[0-1]" in ran.err


# --- packages -------------------------------------------------------------------------------------------------------


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        return


@contextmanager
def served(directory: Path, requires: Sequence[str] = (), **modules: str) -> Iterator[str]:
    """Return requirements that let pip find packages of one module each, and nothing else."""
    for name, text in modules.items():
        wheel(directory, name, "1.0", text, requires=requires if text else ())
    serve = partial(_Quiet, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"--no-index\n--find-links http://127.0.0.1:{server.server_port}/\n"
        server.shutdown()
        thread.join()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """Serve the package ``adds``, which requires ``more``."""
    with served(tmp_path / "wheels", ["more"], adds="VALUE = 41\n", more="") as lines:
        yield lines


NO_PROXY = {"no_proxy": "*", "PIP_CONFIG_FILE": os.devnull}


def test_requirements_are_installed_once_in_addition_to_the_existing_packages(pair: Program, index: str) -> None:
    pair.script("job/requirements.txt", f"{index}-r base.txt\n")
    pair.script("job/base.txt", "adds  # no more than this\n")
    pair.script("job/task.py", "import sys, adds, more, existing\nprint('VALUE', adds.VALUE, sys.prefix)\n")
    plan = pair.run("train", "job/task.py", "--dry-run")
    assert "packages are not installed in a dry run" in plan.err
    first = pair.run("train", "job/task.py", env=NO_PROXY)
    assert "installing packages" in first.err
    prefixes = {
        line.split()[2] for i in (0, 1) for line in lines_of(first, f"worker-{i}") if line.startswith("VALUE 41")
    }
    assert len(prefixes) == 2
    assert all("/fleet/venvs/" in prefix for prefix in prefixes)
    again = pair.run("train", "job/task.py", env=NO_PROXY)
    assert "installing" not in again.err
    without = pair.run("train", "--no-requirements", "--dry-run", "job/task.py")
    assert "warning: task.py:1 imports adds, which worker-[0-1] lack; push it with the script if it is" in without.err
    pair.script("job/requirements.txt", "numpy\n./lib\n")
    local = pair.run("train", "job/task.py", code=2)
    assert "job/requirements.txt:2: ./lib is on this computer" in local.err
    missing = pair.run("train", "--requirements", "none.txt", "job/task.py", code=2)
    assert "the requirements file none.txt does not exist" in missing.err


def test_the_index_of_a_fleet_is_used_with_a_login_from_the_environment(pair: Program, tmp_path: Path) -> None:
    wheel(tmp_path / "index", "indexed", "1.0", "VALUE = 7\n")
    pair.script("job/requirements.txt", "indexed\n")
    pair.script("job/task.py", "import indexed\nprint('VALUE', indexed.VALUE)\n")
    with serve(tmp_path / "index", "reader:s3cr3t") as index:
        pair.run("up", "--index-url", f"http://reader:${{INDEX_PASSWORD}}@{index.location}/simple")
        unset = pair.run("train", "job/task.py", env=NO_PROXY, code=2)
        assert "--index-url refers to the variable INDEX_PASSWORD, which is not set" in unset.err
        ran = pair.run("train", "job/task.py", env={**NO_PROXY, "INDEX_PASSWORD": "s3cr3t"})
        pair.run("up", "--index-url", "")
    assert [lines_of(ran, f"worker-{i}")[-1] for i in (0, 1)] == ["VALUE 7"] * 2
    assert index.refused == 0
    assert "s3cr3t" not in ran.out.decode() + ran.err
    assert not [path for path, content in read_files(pair.state) if b"s3cr3t" in content]


def test_a_project_with_a_lock_runs_in_the_versions_of_the_lock(pair: Program, tmp_path: Path) -> None:
    for version in ("1.0", "2.0"):
        wheel(tmp_path / "index", "locked", version, f"VERSION = {version!r}\n")
    pair.script("pyproject.toml", '[project]\nname = "mine"\nversion = "1"\ndependencies = ["locked>=1"]\n')
    pair.script("requirements.txt", "nothing-that-exists\n")
    pair.script("scripts/train.py", "import locked\nprint('VERSION', locked.VERSION)\n")
    registry = 'source = { registry = "https://pypi.org/simple" }'
    pair.script("uv.lock", f'version = 1\n[[package]]\nname = "locked"\nversion = "1.0"\n{registry}\n')
    with serve(tmp_path / "index") as index:
        pair.run("up", "--index-url", f"http://{index.location}/simple")
        ran = pair.run("train", "scripts/train.py", env=NO_PROXY)
        pair.run("up", "--index-url", "")
    assert [lines_of(ran, f"worker-{i}")[-1] for i in (0, 1)] == ["VERSION 1.0"] * 2
    assert "installing the dependencies of pyproject.toml, in the versions of uv.lock" in ran.err


@pytest.mark.parametrize("read", ["__import__('os').listdir('data')", "open('./data/x.csv')"], ids=["dir", "file"])
def test_data_in_the_current_directory_is_uploaded_by_the_next_line(pair: Program, read: str) -> None:
    pair.script("data/x.csv", "1,2\n")
    pair.script("scripts/task.py", f"import sys\n{read}\nprint('SEEN', sys.argv[1:])\n")
    failed = pair.run("train", "scripts/task.py", "--", "a b", code=100)
    assert "is in the current directory, which was not uploaded" in failed.err
    line = next(line for line in failed.err.splitlines() if line.startswith("next: "))
    ran = pair.run(*shlex.split(line.removeprefix("next: "))[1:])
    assert [lines_of(ran, f"worker-{i}")[-1] for i in (0, 1)] == ["SEEN ['a b']"] * 2
    absent = pair.run("train", "--workdir", "scripts", "scripts/task.py", code=100)  # the option is replaced
    assert "fleet train --workdir . scripts/task.py" in absent.err


def test_a_script_that_creates_its_own_cluster_is_reported(pair: Program) -> None:
    pair.script(
        "task.py", "import os, json\nos.environ['TF_CONFIG'] = json.dumps({'cluster': {'worker': ['a:1', 'b:1']}})\n"
    )
    ran = pair.run("train", "task.py", "--no-adapt", "--dry-run")
    assert "warning: task.py:2: the script sets TF_CONFIG itself" in ran.err
    assert "TF_CONFIG itself" not in pair.run("train", "task.py", "--dry-run").err


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("int(os.environ['PMI_RANK']), os.environ['PMI_SIZE'], sys.argv[1:]", "({rank}, '2', ['a b', '--n'])"),
        (
            "os.environ['RANK'], os.environ['MASTER_ADDR'][:4], os.environ['MASTER_PORT'].isdigit(), "
            "os.environ['OMPI_COMM_WORLD_LOCAL_RANK'], os.environ['SLURM_NODELIST'].count(',')",
            "('{rank}', '127.', True, '0', 1)",
        ),
    ],
)
def test_the_next_line_sets_the_variables_of_another_launcher(pair: Program, expression: str, expected: str) -> None:
    pair.script("job/task.py", f"import os, sys\nprint('SEEN', ({expression}))\n")
    failed = pair.run("train", "job/task.py", "--", "a b", "--n", code=100)
    assert "which mpirun, srun, or another launcher sets; it fails with a KeyError" in failed.err
    assert "another launcher (mpirun, srun, torchrun) sets this variable" in failed.err
    line = next(line for line in failed.err.splitlines() if line.startswith("next: "))
    ran = pair.run(*shlex.split(line.removeprefix("next: "))[1:])
    assert "warning" not in ran.err
    assert [lines_of(ran, f"worker-{i}")[-1] for i in (0, 1)] == [
        f"SEEN {expected.replace('{rank}', str(i))}" for i in (0, 1)
    ]


def test_the_warning_offers_the_variables_whose_default_all_tasks_would_take(pair: Program) -> None:
    pair.script("task.py", "import os\nprint('SEEN', os.environ.get('PMI_RANK', '0'))\n")
    warned = " ".join(pair.run("train", "task.py").err.split())
    line = "fleet train -- bash -c 'PMI_RANK=$FLEET_RANK exec python task.py'"
    assert "all tasks take the same default; use FLEET_RANK" in warned
    assert f"or start it with {line} (" in warned
    ran = pair.run(*shlex.split(line)[1:])
    assert [lines_of(ran, f"worker-{i}")[-1] for i in (0, 1)] == ["SEEN 0", "SEEN 1"]


BY_ARGPARSE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("-r", "--rank", type=int, required=True)
parser.add_argument("--world-size", type=int, required=True)
parser.add_argument("--note", default="")
given = parser.parse_args()
print("SEEN", (given.rank, given.world_size, given.note))
"""
BY_ABSL = """
from absl import app, flags
flags.DEFINE_integer("task_index", None, "index")
flags.DEFINE_string("job_name", None, "type")
flags.DEFINE_list("worker_hosts", [], "addresses")
flags.DEFINE_string("note", "", "text")
flags.mark_flags_as_required(["task_index", "job_name"])
def main(_):
    given = flags.FLAGS
    print("SEEN", (given.task_index, given.job_name, len(given.worker_hosts), given.note))
app.run(main)
"""
BY_ARGV = """
import sys
note = sys.argv[1]
rank = int(sys.argv[2])
size = sys.argv[3]
print("SEEN", (rank, sys.argv[3], note))
"""
_SCRIPT, _COMMAND = ["job/task.py", "--"], ["--", "python", "job/task.py"]


@pytest.mark.parametrize(
    ("source", "command", "typed", "expected"),
    [
        pytest.param(BY_ARGPARSE, _COMMAND, ["--note", "a b"], "({rank}, 2, 'a b')", id="argparse"),
        pytest.param(BY_ABSL, _SCRIPT, ["--note=a b"], "({rank}, 'worker', 2, 'a b')", id="absl"),
        pytest.param(BY_ARGV.replace("size", "num_workers"), _COMMAND, ["a b"], "({rank}, '2', 'a b')", id="argv"),
    ],
)
def test_the_next_line_passes_the_arguments_that_differ_by_task(
    pair: Program, source: str, command: list[str], typed: list[str], expected: str
) -> None:
    pair.script("job/task.py", source)
    if source == BY_ABSL:  # the hosts have no packages
        absl = Path(pytest.importorskip("absl").__file__).parent
        shutil.copytree(absl, pair.directory / "job" / "absl", ignore=shutil.ignore_patterns("__pycache__"))
    failed = pair.run("train", "--env", "X=1 2", *command, *typed, code=100)
    assert "fleet replaces words such as {rank} on each host" in failed.err
    line = next(line for line in failed.err.splitlines() if line.startswith("next: "))
    assert "--env 'X=1 2'" in line
    words = shlex.split(line.removeprefix("next: "))[1:]
    ran = pair.run(*words)
    assert [lines_of(ran, f"worker-{i}")[-1] for i in (0, 1)] == [
        f"SEEN {expected.replace('{rank}', str(i))}" for i in (0, 1)
    ]
    plan = pair.run(words[0], "--dry-run", "-o", "json", *words[1:]).events
    commands = [shlex.split(event["command"]) for event in plan if event["event"] == "task_planned"]
    assert [[str(i) in command, any("{" in word for word in command)] for i, command in enumerate(commands)] == [
        [True, False]
    ] * 2


def test_a_warning_offers_the_arguments_whose_default_all_tasks_would_take(pair: Program) -> None:
    source = BY_ARGPARSE.replace('"--rank", type=int, required=True', '"--rank", type=int, default=0')
    pair.script("task.py", source.replace("required=True", "default=1"))
    warned = pair.run("train", "task.py", "--", "--note", "a b")
    text = " ".join(warned.err.split())
    line = "fleet train task.py -- --note 'a b' --rank '{rank}' --world-size '{tasks}'"
    assert f"every task takes the default of --rank and --world-size; to give each task its value: {line}" in text
    ran = pair.run(*shlex.split(line)[1:])
    assert [lines_of(ran, f"worker-{i}")[-1] for i in (0, 1)] == [f"SEEN ({i}, 2, 'a b')" for i in (0, 1)]
    assert "every task takes the default" not in ran.err


def test_the_next_lines_read_a_file_of_a_notebook_service_next_to_the_script(pair: Program) -> None:
    pair.script("task.py", "print('SEEN', open('/content/data/x 1.txt'.replace(' 1', '')).read())\n")
    failed = pair.run("train", "task.py", code=100)
    assert "/content/ belongs to a notebook service: put data/x.txt next to the script" in failed.err
    assert "next:  fleet logs" in failed.err
    pair.script("data/x.txt", "42")
    failed = pair.run("train", "task.py", code=100)
    edit, again, _ = [line.strip() for line in failed.err.partition("\nnext:")[2].splitlines()]
    subprocess.run(shlex.split(edit), cwd=pair.directory, check=True)
    ran = pair.run(*shlex.split(again)[1:])
    assert lines_of(ran, "worker-1")[-1] == "SEEN 42"


def test_a_download_that_the_script_repeats_is_not_repeated_by_the_next_line(pair: Program) -> None:
    call = "urllib.request.urlretrieve('https://data.example.invalid/iris.csv', 'iris.csv')"
    pair.script("task.py", f"import urllib.request\n{call}\n")
    failed = pair.run("train", "task.py", code=100)
    assert "let the script read it there instead of downloading it" in " ".join(failed.err.split())
    assert "fleet push" in failed.err
    assert "rerun" not in failed.err


def test_placeholders_are_replaced_on_each_host_and_other_braces_stay(pair: Program) -> None:
    pair.script("run.sh", 'echo "SEEN $(printf "<%s>" "$@") $TF_CONFIG"\n')
    others = ["{{rank}}", "{epoch:02d}", '{"rank": {}}', "${rank}", "f'{rank}'"]
    ran = pair.run(
        "train", "--", "bash", "run.sh", "{rank}/{tasks} {type}-{index} {attempt}", "{worker_hosts}", *others
    )
    for index in (0, 1):
        line = next(line for line in lines_of(ran, f"worker-{index}") if line.startswith("SEEN "))
        given, _, config = line.removeprefix("SEEN ").partition(' {"cluster')
        hosts = ",".join(json.loads('{"cluster' + config)["cluster"]["worker"])
        assert given == f"<{index}/2 worker-{index} 1><{hosts}><{{rank}}>" + "".join(
            f"<{word}>" for word in others[1:]
        )


def test_arguments_with_unknown_values_are_named_in_the_hint(pair: Program) -> None:
    pair.script("task.py", BY_ARGPARSE.replace('"--note"', '"--epochs", required=True'))
    failed = pair.run("train", "task.py", code=100)
    assert (
        "exited with code 2: task.py: error: the following arguments are required: -r/--rank, --world-size, --epochs"
        in failed.err
    )
    words = "--rank '{rank}' --world-size '{tasks}' --epochs EPOCHS"
    assert f"fleet train task.py -- {words}" in " ".join(failed.err.split())
    assert "next:  fleet train" not in failed.err
    assert "unknown" not in failed.err
    again = pair.run("rerun", code=100)
    assert "next:  fleet rerun" not in again.err


def test_the_text_of_sys_exit_is_the_cause(pair: Program) -> None:
    pair.script(
        "task.py",
        "import os, sys, time\nif os.environ['FLEET_RANK'] == '0':\n    time.sleep(600)\n"
        "sys.exit('this worker has no data')\n",
    )
    failed = pair.run("train", "task.py", code=100)
    assert "worker-1 (" in failed.err
    assert ") exited with code 1: this worker has no data" in failed.err
    assert "unknown" not in failed.err


@pytest.mark.parametrize("source", ["from trainer.model import SIZE", "from .model import SIZE"])
def test_a_script_that_imports_from_its_package_runs_from_the_directory_above(pair: Program, source: str) -> None:
    pair.script("trainer/model.py", "SIZE = 42\n")
    pair.script("trainer/task.py", f"import os\n{source}\nprint('SEEN', SIZE, os.path.exists('trainer'))\n")
    workdir = ("--workdir", ".") if "trainer" in source else ()
    ran = pair.run("train", "trainer/task.py", *workdir)
    assert "trainer/task.py:2 imports from a package of" in ran.err
    assert "running -m trainer.task there" in ran.err
    assert [lines_of(ran, f"worker-{i}")[-1] for i in (0, 1)] == ["SEEN 42 True"] * 2


def test_check_looks_where_python_looks(pair: Program) -> None:
    pair.script("src/lab/model.py", "SIZE = 42\n")
    pair.script("src/lab/task.py", "import lab.model\n")
    seen = pair.run("check", "--workdir", ".", "src/lab/task.py", code=14)
    text = " ".join((seen.err + seen.out.decode()).split())
    assert "imports lab, which worker-[0-1] lack" in text
    advised = re.search(r"--workdir \S+ -m lab\.task", text)
    assert advised is not None
    pair.run("train", *advised[0].split())
