"""Test that a fork of the warm process is what a new process would be, and when a task is a new process."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.train.agent.hosts import alive
from tests.program import wait_for
from tests.soak.warm import Task, WarmHost, compare_pairs
from train.agent.host.processes import is_marked, list_processes
from train.agent.host.warm_process import end_warm, warm_memory
from train.agent.protocol.records import Exit

LOG_TIME = re.compile(r"[0-9]+\.[0-9]+ +[0-9]+ (?=[a-z_]+\.cc:)")  # and thread
SCRIPT = "import tensorflow as tf\n"
WAIT = SCRIPT + "import subprocess, time\nsubprocess.Popen(['sleep', '1000'])\nprint('runs')\ntime.sleep(1000)\n"
_HEAD = "import tensorflow as tf\nimport sys\n"
ENDS = (
    _HEAD
    + """
strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    variable = tf.Variable(2.0)
@tf.function
def step(value):
    return strategy.reduce("sum", strategy.run(lambda: variable * value), axis=None)
print(float(step(tf.constant(1.5))), len(tf.config.list_physical_devices()))
sys.exit(7)
"""
)
# Prints first the values of all names in all modules; then it uses processes, before TensorFlow starts threads.
FAILS = (
    _HEAD
    + """
kinds = (str, bytes, bool, type(None))
for name, module in sorted(sys.modules.items()):
    values = sorted((key, value) for key, value in vars(module).items() if type(value) in kinds)
    print(name, [pair for pair in values if pair[0] != "__file__" or name != "__main__"])

import atexit, multiprocessing
def square(value):
    return value * value, int(tf.constant(value)) if multiprocessing.get_start_method() == "fork" else 0
if __name__ == "__main__":
    atexit.register(print, "at exit")
    with multiprocessing.Pool(1) as pool:
        print(pool.map(square, range(4)))

tf.keras.utils.set_random_seed(5)
model = tf.keras.Sequential([tf.keras.layers.Dense(4), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
print(model.fit(tf.random.normal([64, 3]), tf.ones([64, 1]), epochs=2, verbose=0, batch_size=32).history)
print(repr(model.predict(tf.ones([2, 3]), verbose=0)))

@tf.function
def fail(value):
    with tf.control_dependencies([tf.debugging.assert_less(value, 1)]):
        return value + 1
try:
    fail(tf.constant(3))
except tf.errors.InvalidArgumentError as error:
    print(type(error), error.message.splitlines()[0])
    raise ValueError("a traceback") from None
"""
)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[WarmHost]:
    """Yield a host whose warm process exists."""
    made = WarmHost(tmp_path)
    assert "no process" in made.run(Task(SCRIPT), made.write(Task(SCRIPT)), warm=True).cold
    yield made
    made.close()


def marked(directory: str) -> list[int]:
    """Return the processes that belong to a task, or to a warm process."""
    return [pid for pid in list_processes() if is_marked(pid, directory)]


def test_a_fork_is_what_a_new_process_would_be(tmp_path: Path) -> None:
    differences: list[str] = []
    assert compare_pairs(11, 12, tmp_path, differences.append) == 0, differences


def test_random_states_and_keys_differ_between_forks(tmp_path: Path) -> None:
    stand_in = (
        "import multiprocessing.process, random, sys\ntry:\n    import numpy.random\nexcept ImportError:\n    pass\n"
        "class Torch:\n    default_generator = random.Random(1)\nsys.modules['torch'] = Torch\n"
    )
    values = "random.random(), numpy.random.random() if 'numpy' in sys.modules else random.random(), "
    values += "sys.modules['torch'].default_generator.random(), "
    values += "bytes(multiprocessing.process.current_process().authkey)"
    text = SCRIPT + "import multiprocessing.process, random, sys\nnumpy = sys.modules.get('numpy')\n"
    host = WarmHost(tmp_path, stand_in)
    task = Task(text + f"print(*map(repr, ({values})))")
    runs = [host.run(task, host.write(task), warm=True) for _ in range(3)]
    host.close()
    assert [run.cold for run in runs[1:]] == ["", ""]
    first, second = (run.output.split(b" ", 3) for run in runs[1:])
    assert not set(first) & set(second)


def test_no_garbage_is_collected_during_the_imports(tmp_path: Path) -> None:
    count, make = "gc.callbacks.append(lambda phase, info: seen.append(phase))", "kept = [[] for _ in range(20_000)]"
    host = WarmHost(tmp_path, f"import gc\nseen = []\n{count}\n{make}\nduring = len(seen)\n")
    task = Task(f"{SCRIPT}import gc\n{make}\nprint(tf.during, len(tf.seen) > tf.during)\n")
    runs = [host.run(task, host.write(task), warm=True) for _ in range(2)]
    host.close()
    assert [(run.cold, run.output) for run in runs] == [
        ("no process has imported this yet", b"0 True\n"), ("", b"0 True\n")
    ]  # fmt: skip


@pytest.mark.parametrize("file", ["logging.py", "tensorflow.py"])
def test_a_module_of_the_script_with_the_name_of_an_imported_one_starts_cold(host: WarmHost, file: str) -> None:
    source = host.write(Task(SCRIPT))
    (source / file).write_text("print('own')")
    run = host.run(Task(SCRIPT), source, warm=True)
    assert run.cold == f"the script's directory has a module {file.partition('.')[0]}"
    assert b"own" in run.output


def test_changed_packages_start_cold(host: WarmHost) -> None:
    changed = host.site / "tensorflow" / "__init__.py"
    changed.write_text("print('new')")
    runs = [host.run(Task(SCRIPT), host.write(Task(SCRIPT)), warm=True) for _ in range(2)]
    assert [run.cold for run in runs] == [f"installed packages or settings have changed: {changed}", ""]
    assert [run.output for run in runs] == [b"new\n", b"new\n"]


def test_changed_settings_of_keras_start_cold(host: WarmHost) -> None:
    directory = host.directory / ".keras"
    directory.mkdir()
    (directory / "keras.json").write_text("{}")
    run = host.run(Task(SCRIPT), host.write(Task(SCRIPT)), warm=True)
    assert run.cold == f"installed packages or settings have changed: {directory / 'keras.json'}"


@pytest.mark.parametrize(
    ("stand_in", "obstacle"),
    [
        ("import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start()", "a thread"),
        (
            "import _thread, sys, time; sys.modules['numpy'] = sys; _thread.start_new_thread(time.sleep, (9,))",
            "a thread",
        ),
        ("import socket; kept = socket.socket()", "a connection"),
        ("import os; pid = os.fork() or os._exit(0)", "a process"),
        ("kept = open(__file__)", "/tensorflow/__init__.py open"),
        ("import mmap; kept = mmap.mmap(-1, 4096)", "shares memory"),
        ("print('x' * 2000000)", "too much"),
    ],
)
def test_an_import_that_cannot_be_forked_stays_cold(tmp_path: Path, stand_in: str, obstacle: str) -> None:
    host = WarmHost(tmp_path, stand_in)
    runs = [host.run(Task(SCRIPT + "print(1)"), host.write(Task(SCRIPT + "print(1)")), warm=True) for _ in range(2)]
    host.close()
    assert obstacle in runs[1].cold
    assert runs[0].output == runs[1].output
    assert runs[0].exit == Exit(code=0)


DRIVER = """
import ctypes
driver = ctypes.CDLL({path!r})
"""


@pytest.mark.parametrize("code", [3, 0])  # CUDA_ERROR_NOT_INITIALIZED, CUDA_SUCCESS
def test_an_import_that_initializes_a_gpu_stays_cold(tmp_path: Path, code: int) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = tmp_path / "driver.c", tmp_path / "libcuda.so.1"
    source.write_text(f"int cuDeviceGetCount(int *count) {{ return {code}; }}\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    host = WarmHost(tmp_path, DRIVER.format(path=str(library)))
    runs = [host.run(Task(SCRIPT), host.write(Task(SCRIPT)), warm=True) for _ in range(2)]
    host.close()
    assert runs[1].cold == ("its import uses a GPU" if code == 0 else "")


def test_paths_and_times_are_those_of_the_task(tmp_path: Path) -> None:
    stand_in = "import logging, multiprocessing.process, os\nhere = os.getcwd()\ninside = here + '/a'\n"
    host = WarmHost(tmp_path, stand_in)
    names = "tf.here == multiprocessing.process.ORIGINAL_DIR == os.getcwd(), tf.inside == tf.here + '/a'"
    task = Task(
        f"import tensorflow as tf\nimport logging, multiprocessing.process, os\nprint({names}, logging._startTime)"
    )
    runs = [host.run(task, host.write(task), warm=True) for _ in range(2)]
    host.close()
    assert runs[1].cold == ""
    words = [run.output.split() for run in runs]
    assert words[0][:2] == words[1][:2] == [b"True", b"True"]
    assert float(words[0][2]) < float(words[1][2])


@pytest.mark.parametrize(
    ("script", "stand_in", "code"),
    [
        (SCRIPT, "raise ImportError('broken')", 1),
        (SCRIPT, "raise SystemExit(3)", 3),
        ("from tensorflow import missing", "print('importing')", 1),
        ("import tensorflow.missing", "print('importing')", 1),
    ],
)
def test_a_failing_import_is_the_scripts_own_error(tmp_path: Path, script: str, stand_in: str, code: int) -> None:
    host = WarmHost(tmp_path, stand_in)
    source = host.write(Task(script))
    runs = [host.run(Task(script), source, warm=warm) for warm in (True, False, True)]
    assert runs[0].exit == runs[1].exit == Exit(code=code)
    assert runs[0].output == runs[1].output
    assert runs[2].cold == "its import fails"
    host.close()


def test_what_prevents_the_import_is_the_reason_for_a_new_process(tmp_path: Path) -> None:
    host = WarmHost(tmp_path, "import sys; sys.modules['jax'] = sys")
    source = host.write(Task("import tensorflow, jax"))
    runs = [host.run(Task("import tensorflow, jax"), source, warm=True) for _ in range(2)]
    host.close()
    assert runs[1].cold == "the module jax was not found"
    assert runs[0].exit == Exit(code=0)


def change_hook(directory: Path, *changes: tuple[str, str]) -> None:
    """Change the source of the warm process of a host."""
    path = directory / "hook" / "warm.py"
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def test_a_warm_process_belongs_to_no_task_before_it_listens(tmp_path: Path) -> None:
    host = WarmHost(tmp_path)
    ready = "            os.close(ready)\n            self._script"
    change_hook(tmp_path, (ready, ready.replace("self", f"os.read(os.open({str(tmp_path / 'go')!r}, 0), 1); self")))
    os.mkfifo(tmp_path / "go")
    source = host.write(Task(SCRIPT))
    with host.start(Task(SCRIPT), source, warm=True) as (held, _):
        held.task.release()
        held.until(lambda: held.closed)
    assert marked(str(source)) == []
    assert len(marked(host.root)) == 1
    assert host.is_preparing()
    (tmp_path / "go").write_text("g")
    wait_for("the warm process", lambda: not host.is_preparing())
    assert host.run(Task(SCRIPT), source, warm=True).cold == ""
    host.close()


def test_short_memory_is_the_reason_for_a_new_process(tmp_path: Path) -> None:
    host = WarmHost(tmp_path)
    change_hook(tmp_path, ("_FREE_FRACTION = 0.1 ", "_FREE_FRACTION = 2.0 "), ("_CHECK_S = 5.0", "_CHECK_S = 0.1"))
    source = host.write(Task(SCRIPT))
    host.run(Task(SCRIPT), source, warm=True)
    wait_for("the end of the warm process", lambda: not marked(host.root))
    assert host.run(Task(SCRIPT), source, warm=True).cold == "less than a tenth of the memory was available"
    host.close()


def test_the_warm_process_holds_nothing_of_a_job_and_ends_when_it_is_asked_to(host: WarmHost) -> None:
    assert warm_memory(host.root) > 0
    (pid,) = marked(host.root)
    process = Path(f"/proc/{pid}")
    assert (process / "cwd").readlink() == Path("/")
    targets = {str(path.readlink()) for path in (process / "fd").iterdir()}
    assert {target for target in targets if not target.startswith("socket:")} == {os.devnull}
    assert b"TF_CONFIG" not in (process / "environ").read_bytes()
    assert os.getsid(pid) != os.getsid(0)
    end_warm(host.root)
    wait_for("the end of the warm process", lambda: not alive(pid))
    assert warm_memory(host.root) == 0


@pytest.mark.parametrize("killed", ["task", "keeper", "connection"])
def test_a_task_ends_with_its_keeper_and_its_supervisor(host: WarmHost, killed: str) -> None:
    source = host.write(Task(WAIT))
    with host.start(Task(WAIT), source, warm=True) as (held, cold):
        assert cold == ""
        task = held.task
        task.release()
        held.until(lambda: b"runs" in held.output)
        assert is_marked(task.pid, str(source))
        assert os.getsid(task.pid) == task.pid
        assert task.keeper is not None
        keeper = task.keeper.keeper
        if killed == "connection":
            task.keeper.connection.shutdown(socket.SHUT_RDWR)
        else:
            os.kill(task.pid if killed == "task" else keeper, signal.SIGKILL)
        held.until(lambda: held.closed)
        assert held.exits == [Exit(signal=signal.SIGKILL)]
    wait_for("the end of the keeper", lambda: not alive(keeper))
    assert marked(str(source)) == []


def test_a_fork_runs_no_user_code_before_its_start_time(host: WarmHost) -> None:
    task = Task(SCRIPT + "import time\nprint(time.monotonic())\n")
    with host.start(task, host.write(task), warm=True) as (held, cold):
        assert cold == ""
        held.until(lambda: held.held)
        start_at = time.monotonic() + 0.2
        held.task.release(start_at)
        held.until(lambda: held.closed)
        assert float(held.output.split()[-1]) >= start_at


def test_stacks_of_a_fork_are_read(host: WarmHost) -> None:
    stacks: list[str] = []
    with host.start(Task(WAIT), host.write(Task(WAIT)), warm=True) as (held, _):
        held.task.release()
        held.until(lambda: b"runs" in held.output)
        held.task.dump_stacks(stacks.append)
        held.until(lambda: stacks)
    assert "task.py" in stacks[0]


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="pip install tensorflow")
def test_pairs_with_tensorflow(tmp_path: Path) -> None:
    host = WarmHost(tmp_path, "")
    env = (("TF_CPP_MIN_LOG_LEVEL", "3"), ("PYTHONHASHSEED", "0"))
    for script, colds in ((ENDS, ["no process has imported this yet", "", "", ""]), (FAILS, [""])):
        task = Task(script, (), env)
        source = host.write(task)
        cold = host.run(task, source, warm=False)
        runs = [host.run(task, source, warm=True) for _ in colds]
        assert [run.cold for run in runs] == colds
        for run in runs:
            assert run.exit == cold.exit
            outputs = [LOG_TIME.sub("", each.output.decode()).splitlines() for each in (cold, run)]
            assert [pair for pair in zip(*outputs, strict=True) if pair[0] != pair[1]] == []
    host.close()
