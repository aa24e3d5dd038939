"""Run replicators as real processes, and a script whose checkpoints show whether they are complete."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from train.agent.checkpoints.replicator import News, Replicator, Restored, Setup
from train.agent.checkpoints.snapshot import Snapshot
from train.agent.host.loop import Loop
from train.agent.host.processes import identify

SECRET = b"s" * 32
DEADLINE_S = 90.0

# Writes checkpoints in a loop; each file contains its step and a digest. Prints each step.
WRITER = r"""
import hashlib, os, sys, time
kind, directory, pause, size, slow = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:6])
os.makedirs(directory, exist_ok=True)
os.chdir(directory)

def body(step):
    text = b"%d " % step + os.urandom(int(size) // 2).hex().encode()
    return text + b" " + hashlib.sha256(text).hexdigest().encode()

def write(name, data):
    with open(name, "wb") as file:
        for at in range(0, len(data), len(data) // 8 + 1):
            file.write(data[at : at + len(data) // 8 + 1])
            file.flush()
            time.sleep(slow / 8)

def replaced(name, data):
    write(name + ".tmp", data)
    os.replace(name + ".tmp", name)

def tensorflow(step):
    os.makedirs(f"ckpt-{step}_temp")
    write(f"ckpt-{step}_temp/part-00000-of-00001.data-00000-of-00001", body(step))
    os.replace(f"ckpt-{step}_temp/part-00000-of-00001.data-00000-of-00001", f"ckpt-{step}.data-00000-of-00001")
    write(f"ckpt-{step}.index", body(step))
    os.rmdir(f"ckpt-{step}_temp")
    names = [n for n in range(step - 2, step + 1) if n > 0]
    for kept in (max(1, step - 3), step - 2):
        text = f'model_checkpoint_path: "ckpt-{step}"\n' + "".join(
            f'all_model_checkpoint_paths: "ckpt-{n}"\n' for n in range(kept, step + 1))
        replaced("checkpoint", text.encode())
        for name in os.listdir("."):
            if name.startswith(f"ckpt-{step - 3}."):
                os.unlink(name)

def keras(step):
    write("weights.bin", body(step))
    write("training_metadata.json", body(step))

step = max([int(open(name, "rb").read().split()[0]) for name in os.listdir(".")
            if name.endswith((".data-00000-of-00001", ".json"))], default=0)
while True:
    step += 1
    {"tensorflow": tensorflow, "keras": keras}[kind](step)
    print(step, flush=True)
    time.sleep(pause)
"""


def step_of(path: Path) -> int:
    """Return the step in a file of the writer, which must be complete."""
    data = path.read_bytes()
    text, _, digest = data.rpartition(b" ")
    assert digest.decode() == hashlib.sha256(text).hexdigest(), f"{path} is not whole"
    return int(text.split()[0])


def step_in(directory: Path) -> int:
    """Return the step of the checkpoint in a directory, 0 if it has none; fail if a file is incomplete."""
    steps = {path.name: step_of(path) for path in directory.iterdir() if path.name != "checkpoint"}
    if (directory / "checkpoint").exists():
        newest = (directory / "checkpoint").read_text().splitlines()[0].split('"')[1]
        for name in (f"{newest}.index", f"{newest}.data-00000-of-00001"):
            assert f"ckpt-{steps[name]}" == newest
        return steps[f"{newest}.index"]
    assert len(set(steps.values())) <= 1, steps
    return max(steps.values(), default=0)


class Host:
    """A replicator, and its directories."""

    def __init__(self, yard: Yard, name: str, **options: Any) -> None:
        self.yard = yard
        self.name = name
        self.directory = yard.directory / name
        self.options = options
        self.where = str(options.pop("live", self.directory / "checkpoints"))
        self.live = Path(self.where)
        self.store = Path(str(options.pop("store", self.directory / "replica")))
        self.news: list[News] = []
        self.start()

    def start(self) -> None:
        setup = Setup(
            job="job",
            secret=SECRET,
            slot=self.name,
            address="127.0.0.1",
            live=self.where,
            store=str(self.store),
            mib_s=1000.0,
        )._replace(**self.options)
        self.replicator = Replicator(self.yard.loop, setup, on_news=self.news.append)
        self.process = identify(self.replicator.pid)
        self.yard.until(lambda: bool(self.news) and not self.news[-1].ended, f"{self.name} to start")

    @property
    def held(self) -> Snapshot | None:
        return self.news[-1].held

    @property
    def newest(self) -> Snapshot:
        assert self.held is not None
        return self.held

    @property
    def source(self) -> tuple[str, int]:
        return "127.0.0.1", self.news[-1].port

    @property
    def notes(self) -> list[str]:
        return [news.note for news in self.news if news.note]

    def send_record(self, act: Callable[[], None], answered: Callable[[News], object]) -> News:
        """Send an order, and return the answer to it."""
        before = len(self.news)
        act()
        self.yard.until(lambda: any(answered(news) for news in self.news[before:]), f"an answer of {self.name}")
        return next(news for news in self.news[before:] if answered(news))

    def settle(self, *, is_orderly: bool = False) -> News:
        return self.send_record(
            lambda: self.replicator.settle(is_orderly=is_orderly), lambda news: news.settled is not None
        )

    def fetch(self, snapshot: Snapshot, *sources: Host) -> News:
        ports = [host.source for host in sources]
        return self.send_record(
            lambda: self.replicator.fetch(snapshot, ports), lambda news: news.fetched or news.error
        )

    def restore(self, snapshot: Snapshot | None, *sources: Host) -> Restored:
        ports = [host.source for host in sources]
        news = self.send_record(lambda: self.replicator.restore(snapshot, ports), lambda news: news.restored)
        assert news.restored is not None
        return news.restored

    def write(self, *writes: tuple[str, str]) -> None:
        for name, text in writes:
            path = self.live / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def snapshot(self, *writes: tuple[str, str]) -> Snapshot:
        """Write `writes`, take a snapshot of the checkpoint directory, and return it."""
        self.write(*writes)
        self.settle(is_orderly=True)
        return self.newest

    def changed_at(self, name: str) -> int:
        """Return the time at which a file of the checkpoint directory was written; 0: never."""
        try:
            return (self.live / name).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def content(self) -> dict[str, object]:
        return tree(self.live)

    def kill(self) -> None:
        os.kill(self.replicator.pid, signal.SIGKILL)
        self.yard.until(lambda: self.news[-1].ended, f"{self.name} to end")
        os.waitpid(self.replicator.pid, 0)

    def close(self) -> None:
        self.replicator.close()
        with contextlib.suppress(ChildProcessError):
            deadline = time.monotonic() + DEADLINE_S
            while os.waitpid(self.replicator.pid, os.WNOHANG)[0] == 0:
                if time.monotonic() > deadline:
                    os.kill(self.replicator.pid, signal.SIGKILL)
                    os.waitpid(self.replicator.pid, 0)
                    raise AssertionError(f"the replicator of {self.name} did not end when its socket was closed")
                time.sleep(0.01)


def tree(directory: Path) -> dict[str, object]:
    """Return the contents of a directory by relative path."""
    files: dict[str, object] = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            files[name] = path.readlink()
        else:
            files[name] = None if path.is_dir() else (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns)
    return files


class Yard:
    """Hosts, and the processes that write on them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.loop = Loop()
        self.hosts: list[Host] = []
        self.writers: list[subprocess.Popen[bytes]] = []

    def host(self, name: str = "worker-0", **options: Any) -> Host:
        host = Host(self, name, **options)
        self.hosts.append(host)
        return host

    def writer(
        self, host: Host, kind: str, *, pause: float = 0.2, size: int = 2000, slow: float = 0.0, attempt: int = 1
    ) -> subprocess.Popen[bytes]:
        options = [kind, str(host.live), str(pause), str(size), str(slow)]
        return self.process(host, [sys.executable, "-c", WRITER, *options], attempt=attempt)

    def process(
        self, host: Host, command: Sequence[str], *, attempt: int = 1, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Start the process of the host's task, and watch its checkpoints."""
        process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, start_new_session=True)
        self.writers.append(process)
        host.replicator.watch(attempt, process.pid)
        return process

    def output_of(self, process: subprocess.Popen[bytes]) -> list[bytes]:
        """Kill a process that has not ended; return the lines that it has printed."""
        self.writers.remove(process)
        process.kill()
        out, _ = process.communicate()
        return out.splitlines()

    def end(self, writer: subprocess.Popen[bytes]) -> int:
        """Kill a writer; return the last step that it printed."""
        return int([b"0", *self.output_of(writer)][-1])

    def until(self, true: Callable[[], bool], awaited: str, deadline_s: float = DEADLINE_S) -> None:
        end = time.monotonic() + deadline_s
        while not true():
            assert time.monotonic() < end, f"waited {deadline_s:.0f} s for {awaited}"
            self.loop.after("tick", 0.02, lambda: None)
            self.loop.turn()

    def run_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.loop.after("end", seconds, lambda: None)
        while time.monotonic() < end:
            self.loop.turn()

    def close(self) -> None:
        for writer in self.writers:
            writer.kill()
            writer.communicate()
        for host in self.hosts:
            host.close()
        self.loop.close()
