from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.unit.train.script.test_script import write
from train.errors import ScriptError
from train.script.entry import EntryPoint, Kind, find_entry

PYTHON = "/opt/python"


def entry_of(script: str = "", module: str = "", command: str = "", workdir: str = "") -> EntryPoint:
    return find_entry(script, module, shlex.split(command), workdir)


def rejected(script: str = "", module: str = "", command: str = "", workdir: str = "") -> ScriptError:
    with pytest.raises(ScriptError) as caught:
        entry_of(script, module, command, workdir)
    return caught.value


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current directory."""
    directory = tmp_path / "job"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


def names(entry: EntryPoint) -> list[str]:
    return [source.name for source in entry.sources]


# --- scripts --------------------------------------------------------------------------------------------------------


def test_a_script_is_uploaded_with_its_directory(here: Path) -> None:
    write(here, {"jobs/task.py": "import near\n", "jobs/near.py": "", "far.py": ""})
    entry = entry_of("jobs/task.py")
    assert (entry.kind, entry.name, entry.workdir) == (Kind.SCRIPT, "task.py", here / "jobs")
    assert entry.command(PYTHON, ["--epochs", "3"]) == [PYTHON, "task.py", "--epochs", "3"]
    assert (entry.program, names(entry)) == ("", ["task.py", "near.py"])
    below = entry_of("jobs/task.py", workdir=".")
    assert (below.workdir, below.name, below.command(PYTHON)) == (here, "jobs/task.py", [PYTHON, "jobs/task.py"])


def test_scripts_that_cannot_be_started_are_rejected(here: Path) -> None:
    write(here, {"-task.py": "", "../task.py": "", "job/b.py": "", "job/a.py": "", "empty/x.txt": ""})
    assert entry_of("./-task.py").command(PYTHON) == [PYTHON, "./-task.py"]  # not an option
    assert "outside the directory to upload" in rejected("../task.py", workdir=".").message
    assert rejected("task.py", workdir="nowhere").message == "the script task.py does not exist"
    assert rejected("./-task.py", workdir="nowhere").message == "--workdir nowhere is not a directory"
    error = rejected("job")
    assert error.message == "job is a directory without __main__.py"
    assert error.hint == "name one of its scripts, such as job/a.py"
    assert rejected("empty").hint == "name a Python script"


def test_a_directory_runs_its_main_module(here: Path) -> None:
    write(here, {"job/__main__.py": "import model\n", "job/model.py": ""})
    entry = entry_of("job")
    assert (entry.workdir, entry.command(PYTHON)) == (here / "job", [PYTHON, "__main__.py"])
    assert entry_of("job", workdir=".").command(PYTHON) == [PYTHON, "job/__main__.py"]


def test_a_relative_import_in_a_script_suggests_its_module(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        here, {"my job/net/task.py": "import os\nfrom . import model\n", "ok.py": "def f():\n    from . import x\n"}
    )
    write(here, {"own.py": "__package__ = 'x'\nfrom . import model\n", "deep/a/b/task.py": "from ..c import d\n"})
    assert entry_of("ok.py").kind is entry_of("own.py").kind is Kind.SCRIPT
    monkeypatch.chdir(here / "my job" / "net")
    error = rejected("task.py")
    assert error.message == "task.py:2 imports from its package, which a script does not have"
    assert error.again == {"SCRIPT": None, "--workdir": f"{here}/my job", "-m": "net.task"}
    deep = rejected(f"{here}/deep/a/b/task.py", workdir=f"{here}/deep/a")
    assert deep.again == {"SCRIPT": None, "--workdir": f"{here}/deep", "-m": "a.b.task"}


@pytest.mark.parametrize(
    ("script", "source", "workdir", "expected"),
    [
        ("trainer/task.py", "from trainer.model import build\n", "", (".", "trainer.task")),
        ("trainer/task.py", "def main():\n    import trainer.model\n", ".", (".", "trainer.task")),
        ("trainer/task.py", "import os\nfrom .model import build\n", "", (".", "trainer.task")),
        ("trainer/task.py", "if __name__ == '__main__':\n    from . import model\n", "", (".", "trainer.task")),
        ("trainer/__main__.py", "from . import model\n", "", (".", "trainer")),
        ("lab/trainer/sub/task.py", "from trainer.model import build\n", "", ("lab", "trainer.sub.task")),
        ("lab/trainer/sub/task.py", "from ..model import build\n", "", ("lab", "trainer.sub.task")),
        ("lab/trainer/sub/task.py", "from ..model import build\n", ".", (".", "lab.trainer.sub.task")),
        ("lab/trainer/sub/task.py", "from lab.trainer.model import build\n", "", (".", "lab.trainer.sub.task")),
        ("packaged/sub/task.py", "from .near import x\n", "", (".", "packaged.sub.task")),
        ("scripts/train.py", "from trainer.model import build\n", "", (".", "scripts.train")),
    ],
)
def test_a_script_that_imports_from_its_package_runs_as_a_module(
    here: Path, script: str, source: str, workdir: str, expected: tuple[str, str]
) -> None:
    model = {"trainer/model.py": "", "lab/trainer/model.py": ""}
    write(here, {**model, "packaged/__init__.py": "", "packaged/sub/__init__.py": "", script: source})
    entry, name = entry_of(script, workdir=workdir), expected[1]
    assert (entry.kind, entry.workdir, entry.name) == (Kind.MODULE, (here / expected[0]).resolve(), f"-m {name}")
    assert entry.command(PYTHON, ["x"]) == [PYTHON, "-m", name, "x"]
    assert f"running -m {name} there" in entry.note


@pytest.mark.parametrize(
    ("source", "workdir"),
    [
        ("import model\n", ""),  # next to the script
        ("import model\nimport trainer.model\n", ""),  # PYTHONPATH or sys.path must have both
        ("try:\n    from . import model\nexcept ImportError:\n    import model\n", ""),
        ("import keras.layers\nimport json.decoder\n", ""),  # installed on the hosts
        ("import trainer.model\n", "trainer"),
        ("import lab.model\n", "."),
    ],
)
def test_a_script_that_needs_no_package_stays_a_script(here: Path, source: str, workdir: str) -> None:
    names = ("trainer/model.py", "keras/layers.py", "json/decoder.py", "far/lab/model.py")
    write(here, {**dict.fromkeys(names, ""), "trainer/task.py": source})
    entry = entry_of("trainer/task.py", workdir=workdir)
    assert (entry.kind, entry.note) == (Kind.SCRIPT, "")


def test_an_r_script_needs_rscript(here: Path) -> None:
    write(here, {"r/task.R": "this is ( not looked at", "task.r": ""})
    entry = entry_of("r/task.R")
    assert (entry.kind, entry.program, entry.workdir) == (Kind.R, "Rscript", here / "r")
    assert entry.command(PYTHON, ["5"]) == ["Rscript", "task.R", "5"]
    assert entry.sources == []
    assert entry_of("task.r").kind is Kind.R
    assert rejected("none.R").message == "the script none.R does not exist"


# --- modules --------------------------------------------------------------------------------------------------------


def test_a_module_is_found_without_importing_it(here: Path) -> None:
    task = "from . import model\nimport top\n"
    write(here, {"package/__init__.py": "raise SystemExit\n", "package/task.py": task, "package/model.py": ""})
    write(here, {"package/top.py": "", "top.py": ""})  # the first is not next to a module
    entry = entry_of(module="package.task")
    assert (entry.kind, entry.name, entry.workdir) == (Kind.MODULE, "-m package.task", here)
    assert entry.command(PYTHON, ["--epochs", "3"]) == [PYTHON, "-m", "package.task", "--epochs", "3"]
    first, *others = names(entry)
    assert (first, sorted(others)) == ("package/task.py", ["package/__init__.py", "package/model.py", "top.py"])


def test_packages_run_their_main_module(here: Path) -> None:
    write(here, {"a/__init__.py": "", "a/__main__.py": "", "a.py": "", "b/__main__.py": "", "c/d.py": "", "d.py": ""})
    write(here, {"d/x.py": "", "d/__main__.py": ""})
    paths = {name: entry.file for name in "abd" if (entry := entry_of(module=name))}
    assert paths == {"a": here / "a/__main__.py", "b": here / "b/__main__.py", "d": here / "d.py"}
    assert entry_of(module="c.d", workdir=str(here)).file == here / "c/d.py"


def test_a_module_that_cannot_be_run_is_reported_with_what_to_run_instead(here: Path) -> None:
    write(here, {"src/package/task.py": "", "package/tasks.py": "", "bare/__init__.py": "", "bare/one.py": ""})
    write(here, {"package/broken.py": "x = 1\nif:\n"})
    error = rejected(module="package.task")
    assert error.message == (
        f"the module package.task does not exist: neither package/task.py nor package/task/__main__.py in {here}"
    )
    assert error.again == {"--workdir": f"{here}/src"}
    assert rejected(module="package.tasky").again == {"-m": "package.tasks"}
    assert rejected(module="zzz").next_steps == (("fleet", "train", "--", "python", "-m", "zzz"),)
    error = rejected(module="bare")
    assert error.message == "bare is a package without __main__.py, which cannot be run"
    assert error.again == {"-m": "bare.one"}
    assert rejected(module="package/task.py").again == {"-m": None, "SCRIPT": "package/task.py"}
    assert "not ..task" in rejected(module="..task").message
    assert rejected(module="package.broken").message.startswith("package/broken.py:2: ")


# --- any other program ----------------------------------------------------------------------------------------------


def test_a_command_runs_in_the_current_directory(here: Path) -> None:
    write(here, {"run.sh": "#!/bin/sh\nexport A=1\npython -u jobs/task.py --x\npython -m pkg.two\n"})
    write(here, {"jobs/task.py": "import near\n", "jobs/near.py": "", "pkg/two.py": "", "unused.py": ""})
    entry = entry_of(command="bash run.sh 'a b'")
    assert (entry.kind, entry.name, entry.workdir) == (Kind.COMMAND, "bash run.sh 'a b'", here)
    assert (entry.command(PYTHON), entry.program) == (["bash", "run.sh", "a b"], "bash")
    assert sorted(names(entry)) == ["jobs/near.py", "jobs/task.py", "pkg/two.py"]
    assert entry_of(command="true", workdir=str(here.parent)).workdir == here.parent
    for name in ("python", "python3"):
        entry = entry_of(command=f"{name} -u jobs/near.py")
        assert (entry.command(PYTHON), entry.program) == ([PYTHON, "-u", "jobs/near.py"], "")
        assert names(entry) == ["jobs/near.py"]
    assert entry_of(command="python3.12 jobs/near.py").program == "python3.12"


@pytest.mark.parametrize(
    ("command", "message", "steps"),
    [
        ("./run.sh", "./run.sh may not be executed", "chmod +x HERE/run.sh; fleet train -- bash ./run.sh"),
        ("./none.sh", "the program ./none.sh does not exist in the directory to upload", ""),
        ("run.sh x", "run.sh is a script, not a program", "fleet train -- bash run.sh x"),
        ("task.py --epochs 3", "task.py is a script, not a program", "fleet train task.py -- --epochs 3"),
        ("task.R", "task.R is a script, not a program", "fleet train task.R"),
        ("''", "the command after -- is empty or invalid", ""),
        ("", "nothing to run: give SCRIPT, -m MODULE, or a command after --", "fleet train --help"),
    ],
)
def test_a_program_that_cannot_be_run_is_rejected(here: Path, command: str, message: str, steps: str) -> None:
    write(here, {"run.sh": "#!/bin/sh\n", "task.py": "", "task.R": ""})
    error = rejected(command=command)
    assert error.message == message
    assert "; ".join(map(shlex.join, error.next_steps)) == steps.replace("HERE", str(here))


def test_an_executable_program_of_the_directory_is_uploaded(here: Path) -> None:
    write(here, {"run.sh": "#!/bin/sh\n", "task.py": ""})
    (here / "run.sh").chmod(0o755)
    entry = entry_of(command="./run.sh x")
    assert (entry.file, entry.program) == (here / "run.sh", "./run.sh")
    steps = rejected(command="../job/task.py", workdir="..").next_steps
    assert steps == (("fleet", "train", "../job/task.py"),)
