"""Fork tasks from a process that has imported what their script imports: `fleet train --warm`.

The supervisor (train.agent.supervisor.warm) starts this as a program of the fleet's interpreter:

    warm.py DIRECTORY KEY SIGNAL MODULE...

It imports the modules and listens on the socket KEY in the directory. A request has the descriptors of a task's pipes
and its command, variables, and directory. For each, a guard is forked, which forks the task, answers with its process
ID, and later with its exit status; if the supervisor disconnects, it kills the task. The task runs the script with
runpy. If no task can be forked, the answer is the reason. For Python 3.9 and later; this does nothing if it is
imported.
"""

import contextlib
import faulthandler
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
import time

TYPE_CHECKING = False  # typing is not imported before the script
if TYPE_CHECKING:
    from typing import Any, NoReturn

LINE = 1023  # number of the descriptor of the hook's pipe in a task
_IDLE_S = 900.0
_CHECK_S = 5.0
_REQUEST_S = 2.0
_MOST = 1 << 22  # bytes of a request
_NOT_RELEASED = 125


def import_modules(modules: "list[str]") -> str:
    """Import the modules; return why no process can be forked from this one; empty: it can."""
    if sys.version_info < (3, 9):
        return "its Python is older than 3.9"
    for name in modules:
        importlib.import_module(name)
    pid = os.fork()  # OpenBLAS ends its threads before a fork, and starts them again when it needs them
    if pid == 0:
        os._exit(0)
    threads = len(os.listdir("/proc/self/task"))
    os.waitpid(pid, 0)
    return "its import starts a thread" if threads > 1 else ""


def read_times() -> "dict[str, float]":
    """Return when packages were last installed, by directory."""
    return {path: os.stat(path).st_mtime for path in sys.path if os.path.isdir(path)}


def serve(listener: socket.socket, times: "dict[str, float]") -> "socket.socket | None":
    """Fork a guard for each connection until packages change; return it in the guard, and None after the last one."""
    path, used = listener.getsockname(), time.monotonic()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards need not be waited for
    listener.settimeout(_CHECK_S)
    while time.monotonic() - used < _IDLE_S and os.path.exists(path) and read_times() == times:
        try:
            connection = listener.accept()[0]
        except socket.timeout:
            continue
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return connection
        connection.close()
        used = time.monotonic()
    return None


def receive(connection: socket.socket) -> "tuple[dict[str, Any], list[int]]":
    """Return a request, and the descriptors of the task's ends of its pipes: output, gate, and the hook's line."""
    connection.settimeout(_REQUEST_S)
    data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    while not data.endswith(b"\n") and len(data) < _MOST:
        data += connection.recv(1 << 16) or b"\n"
    return json.loads(data), descriptors


def guard(connection: socket.socket, pid: int) -> "NoReturn":
    """Report the start and the exit of a task; kill it when its supervisor disconnects."""

    def kill_with_supervisor() -> None:
        with contextlib.suppress(OSError):
            connection.recv(1)
            os.killpg(pid, signal.SIGKILL)

    connection.settimeout(None)
    with contextlib.suppress(OSError):
        connection.sendall(b"started %d %d\n" % (pid, LINE))
        threading.Thread(target=kill_with_supervisor, daemon=True).start()
        _, status = os.waitpid(pid, 0)
        connection.sendall(b"exit %d\n" % status)
    os._exit(0)


def become(request: "dict[str, Any]", descriptors: "list[int]", number: int) -> None:
    """Become a task: its pipes, variables, and directory; wait until its gate opens."""
    output, gate, line = descriptors
    os.setsid()
    for fd, number_in_task in ((output, 1), (output, 2), (line, LINE)):
        os.dup2(fd, number_in_task, inheritable=fd == output)
    os.close(output)
    os.close(line)
    os.umask(request["umask"])
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None
    faulthandler.register(number, LINE, all_threads=True)
    for finder in sys.meta_path:
        if hasattr(finder, "attach"):  # train.agent.injected.observer
            finder.attach(LINE)
    opened = os.read(gate, 64)
    if opened[:1] != b"g":
        os._exit(_NOT_RELEASED)
    time.sleep(max(0.0, float(opened[1:]) - time.monotonic()))
    os.close(gate)


def run_script(command: "list[str]", directory: str) -> int:
    """Run the script of a command; return 1 if it fails, after its traceback."""
    sys.argv[:] = command[2:] if command[1] == "-m" else command[1:]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, directory)
    try:
        if command[1] == "-m":
            runpy.run_module(command[2], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(os.path.abspath(command[1]), run_name="__main__")
    except Exception as error:  # it is printed as the interpreter does
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # the child is not killed when the supervisor ends
    os.setsid()
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the directory of this file
    root, key, number, *modules = sys.argv[1:]
    os.chdir(root)
    for standard in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), standard)
    socket_of_tasks = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    socket_of_tasks.bind(key)  # a socket's path has room for 107 bytes
    obstacle = import_modules(modules)
    names = {name.partition(".")[0] for name in sys.modules}
    socket_of_tasks.listen(16)
    times = read_times()
    supervisor = serve(socket_of_tasks, times)
    if supervisor is not None:
        request, pipes = receive(supervisor)
        shadows = names.intersection(name.partition(".")[0] for name in os.listdir(request["path"]))
        if shadows:
            obstacle = "the script's directory has a module %s" % min(shadows)
        if read_times() != times:
            obstacle = "the installed packages have changed"
        if obstacle:
            supervisor.sendall(("cold %s\n" % obstacle).encode())
            os._exit(0)
        task = os.fork()
        if task:
            for pipe in pipes:
                os.close(pipe)
            guard(supervisor, task)
        supervisor.close()
        become(request, pipes, int(number))
        sys.exit(run_script(request["command"], request["path"]))
