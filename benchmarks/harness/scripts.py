"""Scripts and files that the benchmarks run and copy."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

START = """
import time
now = time.time()
import os, sys
path = os.path.join(sys.argv[1], str(os.getpid()))
with open(path, "w") as file:
    file.write(repr(now))
time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)
"""
"""Writes the time of its first line into the directory of the first argument; waits for the second, in seconds."""

EMIT = """
import os, sys, time
count, kind = int(sys.argv[1]), sys.argv[2]
texts = {"text": b"%d " + b"x" * 119, "steps": b"step %d loss 0.4312 accuracy 0.8713 ", "numbers": b"%d"}
lines = []
for number in range(500):
    line = texts[kind] % number
    lines.append(line[:119] + b"\\n" if kind == "text" else line + b"\\n")
block = b"".join(lines)
begin = time.perf_counter()
with os.fdopen(1, "wb", 0) as output:
    for _ in range(count // 500):
        view = memoryview(block)
        while view:
            view = view[output.write(view):]
seconds = time.perf_counter() - begin
if len(sys.argv) > 3:
    with open(os.path.join(sys.argv[3], str(os.getpid())), "w") as file:
        file.write(repr(count // 500 * 500 / seconds))
"""
"""Prints lines as fast as it can: number, kind, and a directory for the rate that it reached."""

RATE = """
import sys, time
rate, seconds = float(sys.argv[1]), float(sys.argv[2])
begin = time.perf_counter()
for number in range(int(rate * seconds)):
    wait = begin + number / rate - time.perf_counter()
    if wait > 0:
        time.sleep(wait)
    print(f"T{time.time():.6f} step {number} loss 0.4312", flush=True)
"""
"""Prints lines at a rate for some seconds, each with the time."""

_WORDS = [
    "the",
    "training",
    "step",
    "of",
    "a",
    "worker",
    "with",
    "its",
    "loss",
    "accuracy",
    "and",
    "rate",
    "in",
    "this",
    "epoch",
    "of",
    "the",
    "model",
]


def text_block(seed: int, size: int) -> bytes:
    """Return text that can be compressed like source code."""
    chooser = random.Random(seed)
    words = [word.encode() for word in _WORDS] + [chooser.randbytes(4).hex().encode() for _ in range(3000)]
    parts = chooser.choices(words, k=size // 6)
    return b" ".join(parts)[:size].ljust(size, b".")


def write_tree(directory: Path, seed: int, files: int = 500, size: int = 10_240) -> None:
    """Write a directory of text files, all different from those of other seeds: 5 MB by default.

    The seed is their time of change, too: rsync takes files of the same size and second for unchanged.
    """
    shutil.rmtree(directory, ignore_errors=True)
    block = text_block(seed, 200_000)
    chooser = random.Random(seed)
    for number in range(files):
        path = directory / f"d{number % 20:02d}" / f"f{number:03d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        begin = chooser.randrange(len(block) - size)
        path.write_bytes(b"#%d %d\n" % (seed, number) + block[begin : begin + size - 20])
        os.utime(path, (seed, seed))


def write_large(directory: Path, seed: int, megabytes: int, *, is_random: bool = False) -> None:
    """Write a directory with one file, half of which can be compressed, or which is random."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    chooser = random.Random(seed)
    text = text_block(seed, 1 << 19)
    with (directory / "large").open("wb") as file:
        for _ in range(megabytes):
            file.write(chooser.randbytes(1 << 20) if is_random else chooser.randbytes(1 << 19) + text)


def write_script(directory: Path, text: str, name: str = "task.py") -> Path:
    """Write a script into a directory of its own; return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(text)
    return path
