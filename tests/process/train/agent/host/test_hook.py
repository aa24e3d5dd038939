"""Test that the hook leaves no trace when the script begins, and reports stacks and activities."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.process.train.agent.processes import HeldProcess, hook_in, process, script_in
from tests.process.train.agent.requests.test_bootstrap import interpreter
from tests.program import PYTHON
from train.agent.host.facts import Probe
from train.agent.protocol.records import Exit, HangInspection

ENDS = ["3.8", "3.13"]
OBSERVE = """
import json, os, subprocess, sys
child = "import json, os, sys; print(json.dumps([sys.path[1:], dict(os.environ), os.listdir('/proc/self/fd')]))"
print(json.dumps({
    "path": sys.path[1:],
    "env": dict(os.environ),
    "modules": sorted(name for name in sys.modules if name in ("sitecustomize", "faulthandler", "fcntl", "signal")),
    "importers": sorted(sys.path_importer_cache),
    "fds": sorted(map(int, os.listdir("/proc/self/fd"))),
    "child": json.loads(subprocess.run([sys.executable, "-c", child], stdout=subprocess.PIPE).stdout),
}), flush=True)
"""


def started(
    child: HeldProcess, directory: Path, script: str, hook: str, python: str = sys.executable, **env: str
) -> None:
    command = [python, script_in(directory, script)]
    child.task.start(command, {"PATH": os.defpath, **env}, str(directory), 0o022, hook)


def run_held(child: HeldProcess) -> None:
    """Release a task once it is held; return when it has ended."""
    child.until(lambda: child.held)
    child.task.release()
    child.until(lambda: child.exits)


def observe(directory: Path, hook: str, python: str = sys.executable, **env: str) -> dict[str, object]:
    """Return what a script sees of itself."""
    with process() as child:
        started(child, directory, OBSERVE, hook, python, **env)
        run_held(child)
        assert child.exits == [Exit(code=0)], bytes(child.output)
        seen: dict[str, object] = json.loads(child.output)
        return seen


@pytest.mark.parametrize(
    ("version", "given"),
    [
        ("3.8", None),
        ("3.9", ""),
        ("3.10", "/nowhere"),
        ("3.11", None),
        ("3.12", "/nowhere:/a:b::/c"),
        ("3.13", None),
    ],
)
def test_a_script_sees_nothing_of_the_hook(tmp_path: Path, version: str, given: str | None) -> None:
    python, env = interpreter(version), {} if given is None else {"PYTHONPATH": given}
    with_hook, without = observe(tmp_path, hook_in(tmp_path), python, **env), observe(tmp_path, "", python, **env)
    fds, child = with_hook.pop("fds"), with_hook["child"]
    assert fds == [0, 1, 2, 3, 1023]
    assert without.pop("fds") == [0, 1, 2, 3]
    assert with_hook == without
    assert isinstance(child, list)
    assert child[2] == ["0", "1", "2", "3"]


def test_no_user_code_runs_before_the_gate_opens_and_the_start_time(tmp_path: Path) -> None:
    directory = tmp_path / "own"
    directory.mkdir()
    (directory / "sitecustomize.py").write_text("import os\nos.write(1, b'site ')\n")
    (directory / "usercustomize.py").write_text("import os\nos.write(1, b'user ')\n")
    script = "import time; print(time.monotonic())"
    with process() as child:
        started(child, tmp_path, script, hook_in(tmp_path), PYTHONPATH=str(directory))
        child.until(lambda: child.held)
        child.serve(0.2)
        assert child.output == b""
        assert child.task.held
        start_at = time.monotonic() + 0.2
        child.task.release(start_at)
        child.until(lambda: child.exits)
        assert child.output.startswith(b"site ")
        assert float(child.output.split()[-1]) >= start_at
        assert child.held == 1


ALIASED = """
import keras.backend as K
from keras import layers
from keras.layers.core import Dense
import keras, sys, tf_keras, warnings
import keras.layers.core as core
from keras.layers.late import late
assert keras is tf_keras and layers is tf_keras.layers and core.Dense is Dense is layers.Dense
assert keras.__spec__.name == keras.__name__ == "tf_keras", keras.__spec__
assert keras.layers.late.late is late is tf_keras.layers.late.late
try:
    import keras.nothing
except ModuleNotFoundError as error:
    print("as tf-keras:", error)
print(K.name, os.environ.get("PYTHONPATH"), "sitecustomize" in sys.modules)
"""


@pytest.mark.parametrize("version", ENDS)
def test_keras_is_tf_keras_in_an_adapted_interpreter(tmp_path: Path, version: str) -> None:
    package = tmp_path / "tf_keras"
    (package / "layers").mkdir(parents=True)
    (package / "__init__.py").write_text("from . import layers\n")
    (package / "backend.py").write_text("name = 'backend'\n")
    (package / "layers" / "__init__.py").write_text("from .core import Dense\n")
    (package / "layers" / "core.py").write_text("class Dense: pass\n")
    (package / "layers" / "late.py").write_text("from ..backend import name as late\n")
    with process() as child:
        script = "import os, warnings\nwarnings.simplefilter('error')\n" + ALIASED
        started(child, tmp_path, script, hook_in(tmp_path), interpreter(version), FLEET_ADAPT="keras")
        run_held(child)
        assert child.output.decode() == "as tf-keras: No module named 'tf_keras.nothing'\nbackend None False\n"


@pytest.mark.parametrize("version", ENDS)
def test_errors_of_the_next_sitecustomize_are_reported_as_python_does(tmp_path: Path, version: str) -> None:
    python, directory = interpreter(version), tmp_path / "own"
    directory.mkdir()
    for text in ("raise ValueError('no')", "import not_there", "import sys; sys.answer = 42"):
        (directory / "sitecustomize.py").write_text(text)
        script = script_in(tmp_path, "import sys; print(getattr(sys, 'answer', 0))")
        env = {"PATH": os.defpath, "PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}
        plain = subprocess.run(
            [python, script], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        with process() as child:
            child.task.start([python, script], env, str(tmp_path), 0o022, hook_in(tmp_path))
            run_held(child)
            assert bytes(child.output) == plain.stdout


# --- stacks ---------------------------------------------------------------------------------------------------------

SLEEP = """
import faulthandler, signal, sys, threading, time
faulthandler.enable()
faulthandler.register(signal.SIGUSR1)
began = threading.Event()
def load():
    began.set()
    time.sleep(60)
def main():
    threading.Thread(target=load, daemon=True, name="loader").start()
    began.wait()
    print("ready", flush=True)
    time.sleep(60)
main()
"""


@pytest.mark.parametrize("version", ENDS)
def test_the_stacks_of_all_threads(tmp_path: Path, version: str) -> None:
    with process() as child:
        started(child, tmp_path, SLEEP, hook_in(tmp_path), interpreter(version))
        child.task.release()
        child.until(lambda: b"ready" in child.output)
        stacks: list[str] = []
        for count in (2, 4):
            child.task.dump_stacks(stacks.append)
            child.task.dump_stacks(stacks.append)  # both are notified
            child.until(lambda count=count: len(stacks) == count)  # type: ignore[misc]
            assert stacks[-1] == stacks[-2]
            assert " in load\n" in stacks[-1]
            assert " in main\n" in stacks[-1]

        def has_own_stacks() -> bool:
            if b"task.py" not in child.output:
                os.kill(child.task.pid, signal.SIGUSR1)  # the script's own; ignored while stacks are written
            return b"task.py" in child.output

        child.until(has_own_stacks)
        assert not child.exits


def test_no_process_gets_a_signal_that_would_end_it(tmp_path: Path) -> None:
    """A program that the script became, a script that closed our pipe, a task without the hook, a stopped one."""
    scripts = {
        "became": "import os, sys; os.execv('/bin/sh', ['sh', '-c', 'echo ready; sleep 60'])",
        "closed": "import os, time; os.closerange(3, 2000); print('ready', flush=True); time.sleep(60)",
        "without": "import time; print('ready', flush=True); time.sleep(60)",
        "stopped": "import os, time; print('ready', flush=True); os.kill(os.getpid(), 19); time.sleep(60)",
    }
    for name, script in scripts.items():
        with process() as child:
            started(child, tmp_path, script, "" if name == "without" else hook_in(tmp_path))
            child.task.release()
            child.until(lambda child=child: b"ready" in child.output)  # type: ignore[misc]
            child.serve(0.1)
            if name == "stopped":
                child.until(lambda child=child: "T (stopped)" in Path(f"/proc/{child.task.pid}/status").read_text())  # type: ignore[misc]
            stacks: list[str] = []
            child.task.dump_stacks(stacks.append)
            child.until(lambda stacks=stacks: stacks)  # type: ignore[misc]
            assert stacks == [""], name
            child.serve(0.05)
            assert not child.exits, name


@pytest.mark.parametrize("command", ["exec $PYTHON $SCRIPT", "sleep 60 & $PYTHON -c pass; $PYTHON $SCRIPT; echo"])
def test_the_stacks_of_an_interpreter_below_a_shell(tmp_path: Path, command: str) -> None:
    script = script_in(
        tmp_path, "import time\ndef main():\n    print('ready', flush=True)\n    time.sleep(60)\nmain()\n"
    )
    env = {"PATH": os.defpath, "PYTHON": PYTHON, "SCRIPT": script}
    with process() as child:
        child.task.start(["/bin/sh", "-c", command], env, str(tmp_path), 0o022, hook_in(tmp_path))
        child.until(lambda: child.held)
        assert child.output == b""  # held before its exec
        child.task.release()
        child.until(lambda: b"ready" in child.output)
        stacks: list[str] = []
        child.task.dump_stacks(stacks.append)
        child.until(lambda: stacks)
        assert " in main\n" in stacks[0]
        seen: list[HangInspection] = []
        child.task.inspect(seen.append)
        child.until(lambda: seen)
        assert (seen[0].state, " in main\n" in seen[0].stack) == ("S", True)


def test_a_shell_and_all_below_it_find_their_environment(tmp_path: Path) -> None:
    """Whatever the shell makes of PYTHONPATH; nothing is printed if it has closed the hook's pipe."""
    show = "import os, sys; print([os.environ.get('PYTHONPATH'), 'FLEET_HOOK' in os.environ, sys.path[1:]])"
    script = script_in(tmp_path, show)
    line = f"{PYTHON} {script}"
    command = f"{line}; PYTHONPATH=/own:$PYTHONPATH {line}; PYTHONPATH=/own {line}; {line} 1023>&-"
    for given in ({}, {"PYTHONPATH": "/before"}):
        plain = subprocess.run(
            ["/bin/bash", "-c", command],
            env={"PATH": os.defpath, **given},
            cwd=tmp_path,
            capture_output=True,
            check=True,
        )
        with process() as child:
            env = {"PATH": os.defpath, **given}
            child.task.start(["/bin/bash", "-c", command], env, str(tmp_path), 0o022, hook_in(tmp_path))
            run_held(child)
        # A process that does not run the hook keeps its variable, which is harmless.
        shown = child.output.decode().replace("', True, ", "', False, ").splitlines()
        assert shown == plain.stdout.decode().splitlines()


# --- packages -------------------------------------------------------------------------------------------------------


def test_versions_of_packages_come_from_each_kind_of_metadata(tmp_path: Path) -> None:
    site, egg = tmp_path / "site-packages", tmp_path / "tf_nightly-1.0-py3.11.egg"
    header = "Metadata-Version: 2.1\nName: x\nVersion: {}\n\nVersion: of the text\n"
    for path, version in (
        (site / "tensorflow_cpu-9.dist-info" / "METADATA", "2.21.0+local"),
        (site / "Tf.Keras.egg-info" / "PKG-INFO", "2.20.0"),  # of an editable installation
        (site / "keras-3.1-py3.11.egg-info", "3.1"),
        (egg / "EGG-INFO" / "PKG-INFO", "1.0"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(header.format(version))
    (site / "tensorflow-2.0.dist-info").mkdir()  # left behind by an interrupted pip
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{site}:{egg}", "PYTHONNOUSERSITE": "1"}
    python = Path(sys.executable).resolve()
    host = Probe(str(tmp_path / "probe.json"), environment, str(tmp_path / "hook"))
    interpreter = host.interpreter(str(python))
    version = ".".join(map(str, sys.version_info[:3]))
    assert interpreter.versions == {
        "python": version,
        "tensorflow": "2.21.0+local",
        "keras": "3.1",
        "tf_keras": "2.20.0",
    }
    assert (interpreter.pin, interpreter.base) == ("tensorflow-cpu==2.21.0+local", str(python))
    assert interpreter.package_directories[0] == str(site)
    site.rename(tmp_path / "removed")
    interpreter = host.interpreter(str(python))
    assert (interpreter.versions, interpreter.pin) == ({"python": version, "tensorflow": "1.0"}, "tf-nightly==1.0")


# --- the proof ------------------------------------------------------------------------------------------------------


def probe(directory: Path) -> Probe:
    environment = {"PATH": os.environ["PATH"]}
    return Probe(str(directory / "probe.json"), environment, str(directory / "hook"))


def wrapper(directory: Path, command: str) -> str:
    path = directory / "python"
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)
    return str(path)


def test_an_interpreter_proves_that_it_runs_the_hook(tmp_path: Path) -> None:
    host = probe(tmp_path)
    assert host.interpreter(sys.executable).runs_hook
    host.save()
    cache = json.loads((tmp_path / "probe.json").read_text())
    (entry,) = cache.values()
    entry["found"]["versions"] = {"python": "from the cache"}
    (tmp_path / "probe.json").write_text(json.dumps(cache))
    again = probe(tmp_path).interpreter(sys.executable)
    assert (again.versions, again.runs_hook) == ({"python": "from the cache"}, True)
    entry["key"][0] = 1  # another hook than ours
    (tmp_path / "probe.json").write_text(json.dumps(cache))
    again = probe(tmp_path).interpreter(sys.executable)
    assert again.versions["python"] != "from the cache"
    assert again.runs_hook


def test_an_interpreter_that_passes_the_hook_by_does_not(tmp_path: Path) -> None:
    for program in (f"env -u PYTHONPATH {PYTHON}", f"{PYTHON} -I", f"{PYTHON} -S"):
        assert not probe(tmp_path).interpreter(wrapper(tmp_path, f'exec {program} "$@"')).runs_hook


FAKE_TRACE = """
class Trace:
    def __init__(self, name, **kwargs): pass
    def __enter__(self): return self
    def __exit__(self, *args): pass
"""
OBSERVED = """
import sys, os
import tensorflow
from tensorflow.python.profiler.trace import Trace
assert type(tensorflow.__loader__).__name__ == type(tensorflow.__spec__.loader).__name__ == "SourceFileLoader"
with Trace("train"):
    with Trace("tf.function-graph_building"):
        with Trace("tf.function-graph_building"):
            pass
if os.fork() == 0:
    with Trace("tf.function-graph_building"):
        os._exit(0)
os.wait()
try:
    import keras
except ImportError as error:
    print(error)
os.close(1023)
copy = os.dup2(os.open("other", os.O_CREAT | os.O_RDWR), 1023)
with Trace("tf.function-graph_building"):
    pass
print(open("other").read() == "")
"""


@pytest.mark.parametrize("version", ENDS)
def test_the_hook_reports_imports_and_tracing_of_the_task_itself(tmp_path: Path, version: str) -> None:
    package = tmp_path / "tensorflow" / "python" / "profiler"
    package.mkdir(parents=True)
    for directory in (package.parent.parent, package.parent, package):
        (directory / "__init__.py").touch()
    (package / "trace.py").write_text(FAKE_TRACE)
    (tmp_path / "keras.py").write_text("raise ImportError('broken')")
    with process() as child:
        started(child, tmp_path, OBSERVED, hook_in(tmp_path), interpreter(version))
        run_held(child)
        assert child.output == b"broken\nTrue\n"
        expected = ["importing tensorflow", None, "tracing a tf.function", None, "importing keras", None]
        assert [json.loads(report)["activity"] for report in child.reports] == expected
