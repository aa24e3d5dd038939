"""Fork tasks from a process that has imported what their script imports: `fleet train --warm`.

The supervisor (train.agent.supervisor.warm) starts this as a program of the fleet's interpreter:

    warm.py DIRECTORY KEY SIGNAL MODULE...

It imports the modules and listens on the socket KEY in the directory. A request has the descriptors of a task's pipes
and its command, variables, and directory; the answer is the task's process ID. The forked process runs the script
with runpy. Its exit status follows when it has ended. If the supervisor disconnects, the task is killed. If no task
can be forked, DIRECTORY/KEY.obstacle has the reason. For Python 3.9 and later; this does nothing if it is imported.
"""

import contextlib
import faulthandler
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import time

TYPE_CHECKING = False  # typing is not imported before the script
if TYPE_CHECKING:
    from typing import Any

LINE = 1023  # number of the descriptor of the hook's pipe in a task
_IDLE_S = 900.0
_CHECK_S = 5.0
_REQUEST_S = 2.0
_MOST = 1 << 22  # bytes of a request
_NOT_RELEASED = 125
_GPU_DEVICES = ("/dev/nv", "/dev/dri", "/dev/kfd", "/dev/accel")


def find_obstacle() -> str:
    """Return why no process can be forked from this one; empty: it can."""
    pid = os.fork()  # OpenBLAS ends its threads before a fork, and starts them again when it needs them
    if pid == 0:
        os._exit(0)
    threads = len(os.listdir("/proc/self/task"))
    os.waitpid(pid, 0)
    if threads > 1:
        return "its import starts a thread"
    targets = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if entry.is_symlink()]
    return "its import uses a GPU" if any(target.startswith(_GPU_DEVICES) for target in targets) else ""


def read_times() -> "dict[str, float]":
    """Return when packages were last installed, by directory."""
    return {path: os.stat(path).st_mtime for path in sys.path if os.path.isdir(path)}


class Server:
    """Fork a task for each request.

    Args:
        listener: The listening socket.
    """

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.path: str = listener.getsockname()
        self.times = read_times()
        self.names = {name.partition(".")[0] for name in sys.modules}
        self.tasks: "dict[int, socket.socket]" = {}  # connections by process ID

    def serve(self) -> "tuple[dict[str, Any], list[int]] | None":
        """Serve requests; return the request in each task, and None after the last one."""
        ended, ends = os.pipe()
        os.set_blocking(ends, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(ends, warn_on_full_buffer=False)
        used = time.monotonic()
        while True:
            waited: "list[Any]" = [self.listener, ended, *self.tasks.values()]
            ready = select.select(waited, [], [], _CHECK_S)[0]
            used = time.monotonic() if ready or self.tasks else used
            if time.monotonic() - used > _IDLE_S or not os.path.exists(self.path):
                return None
            if ended in ready:
                os.read(ended, 1 << 12)
                self.report_exits()
            for pid, connection in self.tasks.items():
                if connection in ready:  # its supervisor is gone
                    with contextlib.suppress(OSError):
                        os.killpg(pid, signal.SIGKILL)
            request = self.accept() if self.listener in ready else None
            if request is not None:
                os.close(ended)
                os.close(ends)
                return request
            if read_times() != self.times and not self.tasks:
                return None

    def report_exits(self) -> None:
        """Report the tasks that have ended."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                with self.tasks.pop(pid) as connection, contextlib.suppress(OSError):
                    connection.sendall(b"exit %d\n" % status)

    def accept(self) -> "tuple[dict[str, Any], list[int]] | None":
        """Fork a task; return its request in it, and None in this process."""
        connection = self.listener.accept()[0]
        descriptors: "list[int]" = []
        try:
            connection.settimeout(_REQUEST_S)
            data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 3)
            while not data.endswith(b"\n") and len(data) < _MOST:
                piece = connection.recv(1 << 16)
                if not piece:
                    break
                data += piece
            request = json.loads(data)
            reason = self.find_reason(request["path"])
            if reason:
                connection.sendall(("cold %s\n" % reason).encode())
                connection.close()
                return None
            pid = os.fork()
            if pid == 0:
                self.listener.close()
                for other in [*self.tasks.values(), connection]:
                    other.close()
                return request, descriptors
            self.tasks[pid] = connection
            connection.sendall(b"started %d %d\n" % (pid, LINE))
        except (OSError, ValueError, KeyError):
            connection.close()
        finally:
            if descriptors and os.getpid() == _SERVER:
                for fd in descriptors:
                    os.close(fd)
        return None

    def find_reason(self, directory: str) -> str:
        """Return why the task of a script in `directory` must not be forked; empty: it may."""
        if read_times() != self.times:
            return "the installed packages have changed"
        shadows = self.names.intersection(name.partition(".")[0] for name in os.listdir(directory))
        return "the script's directory has a module %s" % min(shadows) if shadows else ""


def become(request: "dict[str, Any]", descriptors: "list[int]", number: int) -> None:
    """Become a task: its pipes, variables, and directory; wait until its gate opens."""
    output, gate, line = descriptors
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
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
    os.write(LINE, b"a")
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


def begin(modules: "list[str]") -> str:
    """Import the modules; return why no task can be forked from this process."""
    if sys.version_info < (3, 9):
        return "its Python is older than 3.9"
    for name in modules:
        importlib.import_module(name)
    return find_obstacle()


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
    _SERVER = os.getpid()
    socket_of_tasks = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    socket_of_tasks.bind(key)  # a socket's path has room for 107 bytes
    obstacle = begin(modules)
    if obstacle:
        with open(key + ".obstacle", "w") as file:
            file.write(obstacle)
        sys.exit()
    socket_of_tasks.listen(16)
    task = Server(socket_of_tasks).serve()
    if task is not None:
        become(*task, int(number))
        sys.exit(run_script(task[0]["command"], task[0]["path"]))
