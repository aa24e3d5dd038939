"""A file that the hosts cannot download: the commands of the error fetch it, send it, and start the job again."""

from __future__ import annotations

import http.server
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.program import Program, lines_of

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")]

SCRIPT = """\
import sys

import numpy as np
import tensorflow as tf

path = tf.keras.utils.get_file("numbers.npz", sys.argv[1])
print("sum", int(np.load(path)["x"].sum()))
"""


@contextmanager
def _served(directory: Path, port: int) -> Iterator[None]:
    """Serve the files of a directory, as a server that only this computer reaches."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(directory))  # type: ignore[arg-type]

        def log_message(self, *arguments: object) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield
        server.shutdown()


def test_the_next_lines_bring_a_file_that_keras_downloads_to_the_hosts(program: Program, tmp_path: Path) -> None:
    served, keras, home = (tmp_path / name for name in ("served", "keras", "home"))
    for directory in (served, keras, home):
        directory.mkdir()
    np.savez(served / "numbers.npz", x=np.arange(10))
    program.script("task.py", SCRIPT)
    program.env |= {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    program.run("up", "--workers", "1")
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    url = f"http://127.0.0.1:{port}/numbers.npz"
    failed = program.run("train", "-e", f"KERAS_HOME={keras}", "task.py", "--", url, code=100)
    assert f"could not download {url}: it cannot reach the server (Connection refused)" in failed.err
    assert "download the file once on this computer and send it to the hosts" in failed.err
    *fetch, rerun, _ = [line.strip() for line in failed.err.partition("\nnext:")[2].splitlines()]
    assert fetch[0].startswith("curl ")
    assert fetch[1].startswith(f"fleet push --to {keras}/datasets ")
    with _served(served, port):
        for line in fetch:
            subprocess.run(line, shell=True, check=True, cwd=tmp_path, env=program.environment(), timeout=60)
    ran = program.run(*rerun.split()[1:])
    assert "sum 45" in lines_of(ran, "worker-0")
