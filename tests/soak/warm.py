"""Run the campaign `warm`: the same script as a new process and as a fork of the warm process, in pairs."""

from __future__ import annotations

import contextlib
import os
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.interpreter import separate_interpreter
from tests.process.train.agent.processes import DEADLINE_S, HeldProcess, hook_in
from tests.program import wait_for
from train.agent.files.disk import list_names
from train.agent.host.processes import MARK, is_marked, list_processes
from train.agent.host.warm_process import end_warm
from train.agent.protocol.records import Exit
from train.agent.warm.client import WarmTask, prepare_directory, read_process, start_warm
from train.agent.warm.plan import VARIABLE, make_plan, read_program

STAND_IN = """
import json, logging, os, random, threading
os.environ["SET_BY_IMPORT"] = "1"
value = random.random()
print("importing", flush=True)
os.write(2, b"from C\\n")
"""
"""A package `tensorflow` that writes, sets a variable, and imports what changes a process."""

_HEAD = """
import tensorflow as tf
import os, sys, signal, time
"""

CASES: dict[str, str] = {
    "interpreter": """
print(sys.flags, sys.argv, getattr(sys, "orig_argv", 0), sys.path, sys.executable, sys.warnoptions, sys._xoptions)
print(sorted(sys.modules), sorted(globals()), sorted(sys.path_importer_cache), list(map(type, sys.meta_path)))
print(__name__, __file__, __spec__, __package__, __builtins__, __doc__, sys.modules["__main__"].__dict__ is globals())
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.name, stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.isatty())
print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.gettrace(), sys.getprofile(), sys.excepthook)
""",
    "process": """
import resource
kept = ("Umask", "State", "Uid", "Gid", "Groups", "Threads", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt", "Cap",
    "NoNew", "Seccomp", "Cpus_allowed_list")
print([line for line in open("/proc/self/status") if line.startswith(kept)])
print(open("/proc/self/limits").read(), open("/proc/self/oom_score_adj").read(), open("/proc/self/cmdline").read())
print(os.getcwd(), os.getsid(0) == os.getpid() == os.getpgrp(), os.nice(0), os.readlink("/proc/self/exe"))
print(sorted((int(fd), os.get_inheritable(int(fd))) for fd in os.listdir("/proc/self/fd") if int(fd) != 3))
print([os.readlink("/proc/self/fd/0"), os.fstat(1).st_mode, os.fstat(1).st_ino == os.fstat(2).st_ino])
print([(number, signal.getsignal(number)) for number in sorted(signal.valid_signals())])
print(open("/proc/self/comm").read(), os.environ.get("GIVEN"))
try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("no child")
""",
    "environment": """
import subprocess
print(list(os.environ.items()))
print(subprocess.run(["env"], capture_output=True, text=True).stdout)
print(subprocess.run([sys.executable, "-c", "import os, sys; print(list(os.environ.items()), sys.path)"],
    capture_output=True, text=True).stdout)
""",
    "exit": "sys.exit({number})",
    "exit with a text": "sys.exit('because {number}')",
    "exit at once": "sys.stdout.write('buffered'); os._exit({number})",
    "end": "",
    "traceback": """
def inner(value):
    try:
        return 1 // value
    except ZeroDivisionError as error:
        raise ValueError("of {number}") from error
inner(0)
""",
    "syntax error": "def (",
    "interrupt": "raise KeyboardInterrupt",
    "signal": "os.kill(os.getpid(), {signal}); time.sleep(0.05)",
    "signal of a child": """
pid = os.fork()
if pid == 0:
    os.kill(os.getpid(), {signal})
    time.sleep(0.05)
    os._exit(3)
print(os.waitpid(pid, 0)[1])
""",
    "handler": """
handled = []
def handle(number, frame):
    handled.append(number)
    print("handled", number, frame.f_lineno)
signal.signal(signal.SIGTERM, handle)
signal.signal(signal.SIGALRM, handle)
os.kill(os.getpid(), signal.SIGTERM)
# In one line, because the signal may arrive at any time.
signal.setitimer(signal.ITIMER_REAL, 0.01); [time.sleep(0.001) for _ in iter(lambda: len(handled), 2)]
""",
    "end of threads": """
import atexit, threading
atexit.register(print, "at exit {number}")
main = threading.main_thread()
threading.Thread(target=lambda: (main.join(), print("thread"))).start()
print(threading.enumerate()[0] is main, main.native_id == threading.get_native_id() == os.getpid(), main.name)
""",
    "fork": """
pid = os.fork()
if pid == 0:
    print("child", flush=True)
    sys.exit({number})
print(os.waitpid(pid, 0)[1])
""",
    "multiprocessing": """
import multiprocessing
def square(value):
    return value * value, multiprocessing.parent_process() is not None
if __name__ == "__main__":
    context = multiprocessing.get_context("{method}")
    with context.Pool(1) as pool:
        print(pool.map(square, range(4)), multiprocessing.current_process().name)
    queue = context.Queue()
    process = context.Process(target=queue.put, args=(len(sys.argv),), name="one")
    process.start()
    print(queue.get(), process.name)
    process.join()
    print(process.exitcode)
""",
    "fault": "import faulthandler; faulthandler.enable(); faulthandler._sigsegv()",
    "stacks": "import faulthandler; faulthandler.dump_traceback(); print(faulthandler.is_enabled())",
    "input": "print(repr(sys.stdin.read()), os.isatty(0)); print(input())",
    "warnings": """
import warnings
warnings.warn("of {number}")
warnings.warn("old", DeprecationWarning)
class Item:
    def __del__(self):
        raise ValueError("in a finalizer")
item = Item()
del item
""",
    "modules": """
import sibling
print(sibling.__file__, sibling.value, sibling.__spec__.origin, sibling.__cached__)
import asyncio, ctypes, json, select, socket, struct, _socket
print(ctypes.sizeof(ctypes.c_long), socket.AF_UNIX, asyncio.run(asyncio.sleep(0, 5)), struct.calcsize("P"))
print(select.PIPE_BUF, ctypes.CDLL(None).getpid() == os.getpid(), socket.socket is not _socket.socket)
""",
    "large output": "print('x' * {number}00000)",
    "orphan": """
import subprocess
subprocess.Popen(["sleep", "100"], start_new_session=True)
print("left")
""",
    "logging": """
import logging
logging.basicConfig(format="%(levelname)s %(module)s %(lineno)d %(processName)s %(threadName)s %(message)s")
logging.warning("given %s", {number})
print(logging.getLogger().handlers[0].stream is sys.stderr)
""",
    "state": """
import gc, locale, tempfile
print(locale.getlocale(), tempfile.gettempdir(), time.tzname, gc.isenabled(), gc.get_threshold())
print(tf.__file__, tf.__spec__.origin, tf.__loader__.__class__, os.environ["SET_BY_IMPORT"])
""",
}
_FIRST = 0.3  # of the pairs
_PAIRS = 200
_METHODS = ("fork", "spawn", "forkserver")
_SIGNALS = ("signal.SIGTERM", "signal.SIGKILL", "signal.SIGINT", "signal.SIGUSR1", "signal.SIGSEGV", "signal.SIGPIPE")
_ADDRESS = re.compile(rb"0x[0-9a-f]{8,}")


@dataclass(frozen=True)
class Run:
    """The exit of a task, and its output."""

    output: bytes
    exit: Exit
    cold: str  # why it was a new process; empty: it was a fork


@dataclass(frozen=True)
class Task:
    """A script with everything that a job gives it."""

    script: str
    arguments: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    umask: int = 0o022
    module: bool = False


class WarmHost:
    """A directory in which tasks run as on a host, with a stand-in for TensorFlow.

    Args:
        directory: Of everything.
        stand_in: Source of the package; empty: the real one is used.
        python: Interpreter of the tasks; empty: this one, without the project's directory.
    """

    def __init__(self, directory: Path, stand_in: str = STAND_IN, python: str = "") -> None:
        self.directory = directory.resolve()
        self.python = python or separate_interpreter(self.directory / "python")
        self.hook = hook_in(self.directory)
        self.root = str(self.directory / "warm")
        self.site = self.directory / "site"
        self.jobs = 0
        if stand_in:
            package = self.site / "tensorflow"
            package.mkdir(parents=True)
            (package / "__init__.py").write_text(stand_in)

    def close(self) -> None:
        """End the warm process."""
        end_warm(self.root)

    def write(self, task: Task) -> Path:
        """Write the files of a new job; return its directory."""
        self.jobs += 1
        source = self.directory / f"job-{self.jobs}"
        source.mkdir()
        (source / "sibling.py").write_text("value = 7\n")
        (source / "task.py").write_text(task.script)
        return source

    def run(self, task: Task, source: Path, *, warm: bool) -> Run:
        """Run a task to its end.

        Args:
            task: To be run.
            source: Its files.
            warm: It may be forked from the warm process, and leaves one if there is none.
        """
        with self.start(task, source, warm=warm) as (held, cold):
            held.task.release()
            held.until(lambda: held.closed, DEADLINE_S)
        wait_for("the warm process", lambda: not self.is_preparing())
        return Run(bytes(held.output), held.exits[0], cold)

    def is_preparing(self) -> bool:
        """Return True if a warm process does not listen yet."""
        names = list_names(self.root)
        # Listed more than once: of a process that forks and ends, one list may contain neither itself nor its child.
        return not any(name + ".json" in names for name in names) and any(
            is_marked(pid, self.root) for _ in range(3) for pid in list_processes()
        )

    @contextlib.contextmanager
    def start(self, task: Task, source: Path, *, warm: bool) -> Iterator[tuple[HeldProcess, str]]:
        """Start a task, held at its gate; yield it with the reason for a new process."""
        words = ("-m", "task") if task.module else ("task.py",)
        command = [self.python, *words, *task.arguments]
        given = {"PATH": os.defpath, "HOME": str(self.directory), "PYTHONUNBUFFERED": "1", "TF_CONFIG": "{}"}
        path = {"PYTHONPATH": str(self.site)} if self.site.exists() else {}
        env = {**given, **path, **dict(task.env), MARK: str(source), "FLEET_JOB_ID": source.name}
        process = read_process(self.python)
        plan = make_plan(command, env, read_program(command, str(source)), process, root=self.root, task=str(source))
        held = HeldProcess(str(source), self.root)
        answer: WarmTask | str = "not wanted" if not warm else plan.obstacle
        if warm and plan.key:
            answer = start_warm(self.root, plan, command, env, str(source), task.umask)
        try:
            if isinstance(answer, WarmTask):
                held.task.adopt(answer, self.hook)
            else:
                hook = self.hook
                if warm and plan.key:
                    prepare_directory(self.root)
                    hook = hook._replace(variables={VARIABLE: plan.text})
                held.task.start(command, env, str(source), task.umask, hook)
            held.until(lambda: held.held)
            yield held, answer if isinstance(answer, str) else ""
        finally:
            held.end()


def sample_task(rng: random.Random, name: str) -> Task:
    """Return a task of a case with random details."""
    body = CASES[name]
    values = {"number": rng.randrange(1, 120), "method": rng.choice(_METHODS), "signal": rng.choice(_SIGNALS)}
    for field, value in values.items():
        body = body.replace("{" + field + "}", str(value))
    return Task(
        _HEAD + body,
        tuple(rng.choice(["a", "--b", "c d", "", "é"]) for _ in range(rng.randrange(3))),
        (("GIVEN", rng.choice(["", "1", "a=b", "ü"])),) if rng.random() < 0.2 else (),
        rng.choice([0o022, 0o077, 0o002]),
        rng.random() < 0.2,
    )


def compare(host: WarmHost, task: Task, *, is_first: bool = False) -> str:
    """Run a task as a new process and as a fork; return how they differ, or an empty string.

    Args:
        host: Where it runs.
        task: To be run.
        is_first: Compare also the new process from which the warm process is forked.
    """
    source = host.write(task)
    cold = host.run(task, source, warm=False)
    if is_first:
        host.close()
        difference = _difference(cold, host.run(task, source, warm=True))
        if difference:
            return f"first: {difference}"
    else:
        host.run(task, host.write(task), warm=True)  # makes the warm process if its environment is new
    warm = host.run(task, source, warm=True)
    if warm.cold:
        return "" if "parsed" in warm.cold else f"not forked: {warm.cold}"
    return _difference(cold, warm)


def _difference(cold: Run, warm: Run) -> str:
    if warm.exit != cold.exit:
        return f"{warm.exit} instead of {cold.exit}\n{warm.output.decode(errors='replace')}"
    outputs = [_ADDRESS.sub(b"0x", run.output) for run in (cold, warm)]
    if outputs[0] != outputs[1]:
        lines = [output.decode(errors="replace").splitlines() for output in outputs]
        differing = [pair for pair in zip(*lines, strict=False) if pair[0] != pair[1]]
        return f"cold: {differing[:1] or lines[0][-3:]}\nwarm: {lines[1][-3:]}"
    return ""


def run(seed: int, rounds: int, report: Callable[[str], None]) -> int:
    """Compare 200 pairs in each round; return the number of those that differ."""
    with tempfile.TemporaryDirectory(prefix="fleet-warm-") as directory:
        return compare_pairs(seed, _PAIRS * rounds, Path(directory), report)


def compare_pairs(seed: int, pairs: int, directory: Path, report: Callable[[str], None], python: str = "") -> int:
    """Compare pairs of scripts; return the number of those that differ."""
    rng = random.Random(seed)
    host = WarmHost(directory, python=python)
    count = 0
    order: list[str] = []
    try:
        for _ in range(pairs):
            order = order or rng.sample(sorted(CASES), len(CASES))
            name = order.pop()
            difference = compare(host, sample_task(rng, name), is_first=rng.random() < _FIRST)
            if difference:
                count += 1
                report(f"{name}: {difference}")
    finally:
        host.close()
    return count
