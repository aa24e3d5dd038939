r"""Keep a copy of a task's process from which later tasks are forked: after the first imports, before the script.

The hook (train.agent.injected.sitecustomize) executes this when a task may run. It executes the script's first
imports, which train.agent.warm.plan has found, and forks the warm process. That process holds nothing of the job. It
forks a task for each request on its socket; the task returns from here, and its interpreter then runs the
script, as in the process that was started with this command. Each task has a keeper as its parent, which reports its
exit, adopts its orphans, and kills it when the supervisor is gone.

Modules that this needs are imported in the warm process only; the tasks do not see them. For Python 3.8 and later.
"""

import os
import sys
import time

TYPE_CHECKING = False  # typing is not imported before the script
if TYPE_CHECKING:
    from typing import Any, NoReturn

TEXT = globals().get("TEXT", "")  # of the variable FLEET_WARM
LINE = globals().get("LINE", -1)  # the hook's pipe
_MARK = "FLEET_TASK_DIRECTORY"
_IDLE_S = 900.0
_CHECK_S = 5.0
_REQUEST_S = 2.0
_READY_S = 5.0
_MOST_OUTPUT = 1 << 20  # bytes
_FREE_FRACTION = 0.1  # of the memory; below it, the warm process ends
_PR_SET_PDEATHSIG, _PR_SET_MM, _PR_SET_MM_MAP, _PR_SET_CHILD_SUBREAPER = 1, 35, 14, 36  # prctl(2)
_SIGKILL = 9
_HOOKS = ("FLEET_HOOK", "FLEET_WARM", "PYTHONPATH")
_CONFIG_SIZE = 1024  # bytes; PyConfig has 400 to 500
_STATE_SIZE = 1 << 16  # bytes from the beginning of PyInterpreterState; PyConfig is in them
_GATE_OPEN = b"g"  # before the time from which the task may run
_LONGEST_OPEN = 64  # bytes
_NOT_RELEASED = 125
_THREAD = "its import starts a thread"
# Of control groups, by their controllers in /proc/PID/cgroup: directory, limit, use, and what of it can be dropped.
_MEMORY_FILES = {
    "": ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
_HARMLESS_FILES = ("/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")
_GPU_DEVICES = ("/dev/nv", "/dev/dri", "/dev/dxg", "/dev/kfd", "/dev/accel", "/dev/vfio")
_UNPROVEN = ("libamdhip64", "libhsa-runtime64", "libze_loader", "libtpu")  # drivers of AMD, Intel, and Google
_CUDA_ERROR_NOT_INITIALIZED = 3


class _Names:
    """Record the top-level names of all modules that are looked for."""

    def __init__(self) -> None:
        self.names: "set[str]" = set()

    def find_spec(self, name: str, path: "object" = None, target: "object" = None) -> None:  # noqa: ARG002
        """Find nothing."""
        self.names.add(name.partition(".")[0])


class _Plan:
    """The contents of the variable FLEET_WARM; see train.agent.warm.plan."""

    def __init__(self, text: str) -> None:
        self.directory, self.key, self.script, self.first_path, volatile, modules, *lines = text.split("\n")
        self.volatile = volatile.split(",")  # variables of the job
        self.modules = modules.split(",")
        self.statements = [line.partition(" ")[::2] for line in lines]  # each with its line in the script


def _find(name: str) -> "Any":
    return sys.modules["_frozen_importlib_external"].PathFinder.find_spec(name)


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError:
        pass


def _stat(path: str) -> "tuple[int, int, int]":
    try:
        stat = os.stat(path)
    except OSError:
        return 0, 0, 0
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _started(pid: int) -> int:
    """Return when a process was started, in ticks; 0 if it is gone."""
    fields = _read("/proc/%d/stat" % pid).rpartition(") ")[2].split()
    return int(fields[19]) if fields and fields[0] not in "ZX" else 0


def _is_memory_short() -> bool:
    """Return True if little memory is available on the host, or in a control group of this process."""
    values = {line.split(":")[0]: line.split()[1] for line in _read("/proc/meminfo").splitlines() if ":" in line}
    if int(values.get("MemAvailable", "1")) < _FREE_FRACTION * int(values.get("MemTotal", "1")):
        return True
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        names = _MEMORY_FILES.get(controllers)
        while names:
            if _is_group_full(names[0] + path, *names[1:]):
                return True
            if not path.strip("/"):
                break
            path = path.rpartition("/")[0]
    return False


def _is_group_full(directory: str, limit: str, used: str, inactive: str) -> bool:
    most, taken = _read(directory + "/" + limit).strip(), _read(directory + "/" + used).strip()
    if not most.isdigit() or not taken.isdigit():
        return False
    lines = _read(directory + "/memory.stat").splitlines()
    free = sum(int(line.split()[1]) for line in lines if line.startswith(inactive + " "))
    return int(most) - int(taken) + free < _FREE_FRACTION * int(most)


def _fork() -> int:
    """Fork; Python 3.12 and later warn of threads, which are known here."""
    warnings = sys.modules.get("warnings")
    if warnings is None:
        return os.fork()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


# --- output of the imports ------------------------------------------------------------------------------------


class _Recorder:
    """Copy what the imports write to the output, and record it; a process of its own, so that no crash loses it."""

    def __init__(self, high: int) -> None:
        self._output = os.dup2(1, high, inheritable=False)
        reads, writes = os.pipe()
        back, back_end = os.pipe()
        finish_end, self._finish = os.pipe()
        if os.fork() == 0:
            try:
                if os.fork() == 0:
                    for fd in (writes, back, self._finish, LINE):
                        os.close(fd)
                    _copy(reads, self._output, back_end, finish_end)
            finally:
                os._exit(0)
        os.wait()
        for fd in (reads, back_end, finish_end):
            os.close(fd)
        self._back = os.dup2(back, high - 1, inheritable=False)
        self._finish = self._move(self._finish, high - 2)
        os.close(back)
        os.dup2(writes, 1)
        os.dup2(writes, 2)
        os.close(writes)

    @staticmethod
    def _move(fd: int, to: int) -> int:
        os.dup2(fd, to, inheritable=False)
        os.close(fd)
        return to

    def finish(self) -> "bytes | None":
        """Restore the output; return what was written, or None if it is incomplete."""
        os.dup2(self._output, 1)
        os.dup2(self._output, 2)
        os.close(self._output)
        os.close(self._finish)
        pieces = []
        while True:
            data = os.read(self._back, 1 << 16)
            if not data:
                break
            pieces.append(data)
        os.close(self._back)
        recorded = b"".join(pieces)
        return recorded[1:] if recorded[:1] == b"=" else None


def _copy(reads: int, output: int, back: int, finish: int) -> None:
    import select
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends when the task ends
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(1, 2)
    recorded, ended = bytearray(), False
    poll = select.poll()
    poll.register(reads, select.POLLIN)
    poll.register(finish, select.POLLIN)
    os.set_blocking(reads, False)
    while not ended:
        finished = finish in [fd for fd, _ in poll.poll()]
        while True:
            try:
                data = os.read(reads, 1 << 16)
            except BlockingIOError:
                break
            if not data:
                ended = True
                break
            recorded += data[: _MOST_OUTPUT + 1 - len(recorded)]
            while data:
                data = data[os.write(output, data) :]
        if (finished or ended) and finish >= 0:
            is_whole = ended and len(recorded) <= _MOST_OUTPUT
            data = b"=" + bytes(recorded) if is_whole else b"!"
            while data:
                data = data[os.write(back, data) :]
            os.close(back)
            poll.unregister(finish)
            finish = -1


# --- the first task -------------------------------------------------------------------------------------------


def _execute(plan: _Plan) -> None:
    """Execute the script's first statements, as the script does it a moment later.

    Python does not search for garbage meanwhile, and what was imported is exempt from later searches: each of them
    would take 0.15 s for TensorFlow, which leaves little garbage, and would copy its memory in a fork.
    """
    gc, thresholds = _import_gc()
    space = {"__name__": "__main__", "__file__": plan.script}
    gc.set_threshold(0)
    try:
        for line, statement in plan.statements:
            exec(compile("\n" * (int(line) - 1) + statement, plan.script, "exec"), space)  # noqa: S102
        gc.freeze()
    finally:
        if gc.get_threshold()[0] == 0:  # else a statement has set it
            gc.set_threshold(*thresholds)


def _import_gc() -> "tuple[Any, tuple[int, int, int]]":
    """Return the module gc, without leaving it among the imported modules, and its thresholds."""
    was_imported = "gc" in sys.modules
    import gc

    if not was_imported:
        del sys.modules["gc"]
    return gc, gc.get_threshold()


def _is_of_statement(error: BaseException) -> bool:
    """Return True if a statement failed by itself, such as for an unknown name: the script fails likewise."""
    frames, trace = 0, error.__traceback__
    while trace is not None:
        frames, trace = frames + 1, trace.tb_next
    return isinstance(error, ImportError) and frames == 3  # `_begin`, `_execute`, and the statement


def _start_again(hook: str) -> "NoReturn":
    """Start the interpreter again without this: the script fails at its own import."""
    command = _given_command()
    here, _, number = hook.rpartition(":")
    os.set_inheritable(LINE, True)
    had = "1" if "PYTHONPATH" in os.environ else "0"
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = here + os.pathsep + path if path else here
    os.environ["FLEET_HOOK"] = "%d:-1:%d:%s:%s:%s" % (os.getpid(), LINE, number, had, path)
    os.execv(sys.executable, command)  # noqa: S606


def _given_command() -> "list[bytes]":
    with open("/proc/self/cmdline", "rb") as file:
        return file.read().split(b"\0")[:-1]


def _given_environment() -> "dict[str, str]":
    """Return the environment with which this process was started: Python may set LC_CTYPE before anything runs."""
    with open("/proc/self/environ", "rb") as file:
        items = [item.partition(b"=")[::2] for item in file.read().split(b"\0") if item]
    return {os.fsdecode(name): os.fsdecode(value) for name, value in items}


def _descriptors() -> "set[int]":
    """Return the open descriptors, without that which reads them."""
    opened = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
            opened.add(int(name))
        except OSError:
            continue
    return opened


def _obstacle(opened: "set[int]", source: str) -> str:
    """Return why no process can be forked from this one; empty: it can, unless it has threads after the fork."""
    mapped = [line.split(None, 5) for line in _read("/proc/self/maps").splitlines()]
    targets = [os.readlink("/proc/self/fd/%d" % fd) for fd in opened]
    if _uses_gpu({*targets, *(words[5] for words in mapped if words[5:])}):
        return "its import uses a GPU"
    if any(words[1][1] == "w" and words[1][3] == "s" for words in mapped):
        return "its import shares memory with other processes"
    return _obstacle_of_files(targets) or _obstacle_of_modules(source) or _obstacle_of_processes()


def _obstacle_of_files(targets: "list[str]") -> str:
    for target in targets:
        if target.startswith(("socket:", "pipe:")):
            return "its import opens a connection"
        if target not in _HARMLESS_FILES:
            return "its import keeps %s open" % target
    return ""


def _obstacle_of_modules(source: str) -> str:
    origins = [getattr(getattr(module, "__spec__", None), "origin", None) for module in list(sys.modules.values())]
    read = [origin for origin in origins if isinstance(origin, str) and origin.startswith(source + os.sep)]
    return "its import reads " + read[0] if read else ""


def _obstacle_of_processes() -> str:
    threading = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
        return _THREAD
    return "its import starts a process" if _has_children() else ""


def _uses_gpu(files: "set[str]") -> bool:
    """Return True unless all drivers of GPUs in this process are proven to be unused: their state survives no fork.

    Before cuInit, which opens the devices, functions of NVIDIA's driver only return CUDA_ERROR_NOT_INITIALIZED.
    Source: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__INITIALIZE.html

    Args:
        files: That are mapped, or open.
    """
    names = {path.rpartition("/")[2]: path for path in files}
    if any(path.startswith(_GPU_DEVICES) for path in files) or any(name.startswith(_UNPROVEN) for name in names):
        return True
    drivers = [path for name, path in names.items() if name.startswith("libcuda.so")]
    ctypes: "Any" = sys.modules.get("ctypes")  # TensorFlow imports it
    try:
        codes = [ctypes.CDLL(path).cuDeviceGetCount(ctypes.byref(ctypes.c_int())) for path in drivers]
    except (AttributeError, OSError):
        return True
    return any(code != _CUDA_ERROR_NOT_INITIALIZED for code in codes)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _write_obstacle(plan: _Plan, text: str) -> None:
    _write(plan.directory + "/" + plan.key + ".obstacle", text)


def _begin(plan: _Plan, hook: str) -> None:
    site = sys.modules.get("site")
    if getattr(site, "ENABLE_USER_SITE", False) and _find("usercustomize") is not None:
        _write_obstacle(plan, "a module usercustomize runs before the script")
        return
    has_first = not getattr(sys.flags, "safe_path", False)
    finder = _Names()
    if has_first:
        sys.path.insert(0, plan.first_path)
    try:
        missing = [name for name in plan.modules if _find(name) is None]
        if missing:
            _write_obstacle(plan, "the module %s was not found" % missing[0])
            return
        before = _given_environment()
        standard = _descriptors()
        recorder = _Recorder(LINE - 2)
        sys.meta_path.insert(0, finder)
        try:
            _execute(plan)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            recorder.finish()
            _write_obstacle(plan, "its import fails")
            if _is_of_statement(error):
                return
            _start_again(hook)
        finally:
            if finder in sys.meta_path:
                sys.meta_path.remove(finder)
        output = recorder.finish()
    finally:
        if has_first and sys.path[:1] == [plan.first_path]:
            del sys.path[0]
    names = [name for name in dict.fromkeys([*os.environ, *before]) if name not in _HOOKS]
    changes = {name: os.environ.get(name) for name in names}
    changes = {name: value for name, value in changes.items() if value != before.get(name)}
    source, files = os.path.realpath(os.getcwd()), _descriptors() - standard
    obstacle = _obstacle(files, source) or ("" if output is not None else "its import writes too much")
    if obstacle:
        _write_obstacle(plan, obstacle)
        return
    _Warm(plan, finder.names, output or b"", changes, files).begin()


# --- the warm process -----------------------------------------------------------------------------------------


class _Tools:
    """Modules that are imported here, and functions of the C library."""

    def __init__(self) -> None:
        import _socket
        import ctypes
        import select
        import struct

        self._pack = struct.pack
        self.socket, self.select, self.ctypes = _socket, select, ctypes
        self._library = ctypes.CDLL(None, use_errno=True)
        self._library.sbrk.restype = ctypes.c_void_p
        self._library.sbrk.argtypes = [ctypes.c_long]

    def control(self, option: int, value: int) -> None:
        """Call prctl(2)."""
        self._library.prctl(option, value, 0, 0, 0)

    def rename(self, command: "list[bytes]", environment: "list[bytes]") -> None:
        """Set what /proc/PID/cmdline and /proc/PID/environ contain: those of the process that was forked otherwise.

        Raises:
            OSError: the kernel cannot do it.
        """
        ctypes = self.ctypes
        words, variables = (b"".join(item + b"\0" for item in items) for items in (command, environment))
        text = ctypes.create_string_buffer(words + variables, len(words) + len(variables) + 1)
        begin = ctypes.addressof(text)
        between, end = begin + len(words), begin + len(words) + len(variables)
        fields = _read("/proc/self/stat").rpartition(") ")[2].split()
        code_begin, code_end, stack, data_begin, data_end, heap = (
            int(fields[at - 3]) for at in (26, 27, 28, 45, 46, 47)
        )
        places = (code_begin, code_end, data_begin, data_end, heap, self._library.sbrk(0), stack)
        layout = self._pack("11QQII", *places, begin, between, between, end, 0, 0, 0xFFFFFFFF)  # struct prctl_mm_map
        if self._library.prctl(_PR_SET_MM, _PR_SET_MM_MAP, layout, len(layout), 0):
            raise OSError(ctypes.get_errno(), "prctl")
        ctypes.PyDLL(None).Py_IncRef(ctypes.py_object(text))  # the kernel reads it as long as the process lives


class _Script:
    """The path of the script in the interpreter's configuration, which is absolute since Python 3.9.

    The field run_filename of PyConfig has a different place in each version: it is the pointer to this path.

    Raises:
        LookupError: it was not found.
        AttributeError: this Python does not export its configuration.
    """

    def __init__(self, ctypes: "Any", command: "list[str]", directory: str) -> None:
        self._ctypes = ctypes
        self._python = ctypes.PyDLL(None)  # ctypes.pythonapi would keep what is used here
        is_absolute = command[1] != "-m" and sys.version_info >= (3, 9)
        self._path = os.path.join(directory, command[1]) if is_absolute else ""
        if self._path:
            get_state = self._python.PyInterpreterState_Get
            get_state.restype = ctypes.c_void_p
            state = get_state()
            get_config = getattr(self._python, "_PyInterpreterState_GetConfig", None)
            if get_config is None:  # Python 3.13
                self._field = self._find_field(state, _STATE_SIZE)
            else:
                get_config.restype, get_config.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
                self._field = self._find_field(get_config(state), _CONFIG_SIZE)

    def _find_field(self, begin: int, length: int) -> int:
        wanted = _wide(self._path)
        size = self._ctypes.sizeof(self._ctypes.c_void_p)
        fields = []
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            words = os.pread(memory.fileno(), length, begin)
            for at in range(0, len(words) // size * size, size):
                address = int.from_bytes(words[at : at + size], sys.byteorder)
                if address % size:
                    continue
                try:
                    data = os.pread(memory.fileno(), len(wanted), address) if address >> 12 else b""
                except (OSError, OverflowError):
                    continue
                if data == wanted:
                    fields.append(begin + at)
        if len(fields) != 1:
            raise LookupError
        return fields[0]

    def set(self, command: "list[str]") -> None:
        """Set the path to that of a command in the current directory."""
        path = os.path.join(os.getcwd(), command[1]) if self._path else ""
        if path == self._path:
            return
        allocate = self._python.PyMem_RawMalloc
        allocate.restype, allocate.argtypes = self._ctypes.c_void_p, [self._ctypes.c_size_t]
        data = _wide(path)
        address = allocate(len(data))
        self._ctypes.memmove(address, data, len(data))
        self._ctypes.c_void_p.from_address(self._field).value = address


def _wide(text: str) -> bytes:
    """Return a string of wchar_t in C."""
    return b"".join(ord(character).to_bytes(4, sys.byteorder) for character in text + "\0")


class _Request:
    """A task to fork.

    Args:
        values: As train.agent.warm.client sends them.
        descriptors: The ends of the pipes for its output, its gate, and its hook.
    """

    def __init__(self, values: "dict[str, Any]", descriptors: "list[int]") -> None:
        self.command: "list[bytes]" = values["command"]
        self.environment: "list[tuple[bytes, bytes]]" = values["environment"]
        self.directory: bytes = values["directory"]
        self.first_path: bytes = values["first_path"]
        self.umask: int = values["umask"]
        self.descriptors = descriptors
        self.keeper = 0


class _Warm:
    """The process that has imported the modules; tasks are forked from it.

    Args:
        plan: Of the first task.
        names: Of all modules that the imports looked for.
        output: Of the imports.
        changes: Of the environment by the imports; None: removed.
        files: Descriptors that the imports opened.
    """

    def __init__(
        self,
        plan: _Plan,
        names: "set[str]",
        output: bytes,
        changes: "dict[str, str | None]",
        files: "set[int]",
    ) -> None:
        self._plan = plan
        self._names = names
        self._output = output
        self._changes = changes
        self._kept = files
        self._command = [os.fsdecode(word) for word in _given_command()]
        self._directory = os.getcwd()
        self._first = os.getpid()
        self._first_started = _started(self._first)
        self._tools: "_Tools"

    def begin(self) -> None:
        """Fork the warm process, and wait until it holds nothing of the job; return in all tasks."""
        permission, permission_end = os.pipe()
        ready, ready_end = os.pipe()
        child = _fork()
        if child:
            os.close(permission)
            os.close(ready_end)
            # NumPy's OpenBLAS ends its threads before a fork, and starts them again when it needs them.
            if len(os.listdir("/proc/self/task")) == 1:
                os.write(permission_end, b"g")
            else:
                _write_obstacle(self._plan, _THREAD)
            os.close(permission_end)
            _await_ready(ready, child)
            return
        try:
            os.close(ready)
            os.close(permission_end)
            if os.read(permission, 1) != b"g":
                os._exit(0)
            os.setsid()
            if _fork():
                os._exit(0)
            request = self._serve(ready_end)
        except BaseException:  # noqa: BLE001 - the first task runs without a warm process
            os._exit(0)
        try:
            self._become(request)
        except BaseException as error:  # noqa: BLE001 - only a task may leave this process
            os.write(2, ("fleet: the task cannot be started: %r\n" % (error,)).encode("utf-8", "backslashreplace"))
            os._exit(_NOT_RELEASED)

    def _serve(self, ready: int) -> _Request:
        """Answer requests; return in each task, with its request."""
        before = set(sys.modules)
        importers = set(sys.path_importer_cache)
        self._tools = _Tools()
        try:
            self._detach(ready)
            self._name(_WARM_NAME)
            os.write(ready, b"r")
            os.close(ready)
            self._script = _Script(self._tools.ctypes, self._command, self._directory)
        except (AttributeError, LookupError, OSError) as error:
            _write_obstacle(self._plan, "this kernel or Python does not allow it: %r" % (error,))
            os._exit(0)
        self._names_of_directory = _find_paths(self._directory)
        self._files = self._stat_files()
        listener = self._listen()
        tools = self._tools
        for name in set(sys.modules) - before:
            del sys.modules[name]
        for name in set(sys.path_importer_cache) - importers:
            del sys.path_importer_cache[name]
        keepers: "set[int]" = set()
        used = time.monotonic()
        poll = tools.select.poll()
        poll.register(listener.fileno(), tools.select.POLLIN)
        while True:
            is_requested = bool(poll.poll(_CHECK_S * 1000))
            keepers = {pid for pid in keepers if os.waitpid(pid, os.WNOHANG)[0] == 0}
            now = time.monotonic()
            if keepers or _started(self._first) == self._first_started:
                used = now
            if now - used > _IDLE_S or not self._is_listed() or self._lacks_memory():
                os._exit(0)
            request = self._accept(listener) if is_requested else None
            if request is None:
                continue
            connection, wanted = request
            pid = _fork()
            if pid == 0:
                listener.close()
                self._keep(connection, wanted)
                return wanted
            keepers.add(pid)
            connection.close()
            for fd in wanted.descriptors:
                os.close(fd)

    def _detach(self, ready: int) -> None:
        """Keep no descriptor, directory, or variable of the job."""
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        _close_others({ready, *self._kept})
        os.chdir("/")
        for name in self._plan.volatile:
            os.environ.pop(name, None)
        os.environ[_MARK] = self._plan.directory
        sys.path_importer_cache.pop(self._plan.first_path, None)

    def _name(self, name: bytes) -> None:
        environment = [b"%s=%s" % pair for pair in os.environb.items()]
        self._tools.rename([os.fsencode(sys.executable), name], environment)

    def _listen(self) -> "Any":
        socket, key = self._tools.socket, self._plan.key
        self._oom = _read("/proc/self/oom_score_adj")
        _write("/proc/self/oom_score_adj", "1000")
        os.chdir(self._plan.directory)  # a socket's path has room for only 107 bytes
        umask = os.umask(0o177)
        new = key + ".new"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(new)
        listener.listen(16)
        self._inode = os.stat(new).st_ino
        boot = _read("/proc/sys/kernel/random/boot_id").strip()
        _write(key + ".json", '{"process": [%d, %d, "%s"]}' % (os.getpid(), _started(os.getpid()), boot))
        os.rename(new, key)
        os.umask(umask)
        os.chdir("/")
        return listener

    def _is_listed(self) -> bool:
        """Return True if the socket's path leads to this process."""
        try:
            return os.stat(self._plan.directory + "/" + self._plan.key).st_ino == self._inode
        except OSError:
            return False

    def _lacks_memory(self) -> bool:
        """Return True if this process must end because memory is short; the next task reports it."""
        is_short = _is_memory_short()
        if is_short:
            _write_obstacle(self._plan, "less than a tenth of the memory was available")
        return is_short

    def _stat_files(self) -> "dict[str, tuple[int, int, int]]":
        """Return the state of everything that another import would read."""
        paths = {sys.prefix + "/pyvenv.cfg", *(path for path in sys.path if path)}
        homes = (os.environ.get("KERAS_HOME", "/tmp/.keras"), os.path.expanduser("~/.keras"))  # noqa: S108
        paths.update(home + "/keras.json" for home in homes)
        for module in list(sys.modules.values()):
            spec: "Any" = getattr(module, "__spec__", None)
            if getattr(spec, "has_location", False) and isinstance(spec.origin, str):
                paths.add(spec.origin)
        return {path: _stat(path) for path in paths}

    def _accept(self, listener: "Any") -> "tuple[Any, _Request] | None":
        """Return a connection and its request; None if it was refused."""
        socket = self._tools.socket
        fd, _ = listener._accept()
        connection = socket.socket(fileno=fd)
        descriptors: "list[int]" = []
        try:
            connection.settimeout(_REQUEST_S)
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if int.from_bytes(peer[4:8], sys.byteorder) == os.getuid():
                request = _Request(_receive(socket, connection, descriptors), descriptors)
                reason = self._refusal(request)
                if not reason and len(descriptors) == 3:
                    return connection, request
                connection.send(("cold %s\n" % reason).encode("utf-8", "backslashreplace"))
        except (OSError, ValueError, KeyError, EOFError, TypeError):
            pass
        for fd in descriptors:
            os.close(fd)
        connection.close()
        return None

    def _refusal(self, request: _Request) -> str:
        """Return why the task must not be forked; empty: it may."""
        for path, state in self._files.items():
            if _stat(path) != state:
                os.unlink(self._plan.directory + "/" + self._plan.key)
                return "installed packages or settings have changed: %s" % path.replace("\n", "?")
        for name in os.listdir(request.first_path):
            root = os.fsdecode(name).partition(".")[0]
            if root in self._names:
                return "the script's directory has a module %s" % root
        return ""

    def _keep(self, connection: "Any", request: _Request) -> None:
        """Fork the task and return in it; keep it in this process until the supervisor disconnects."""
        os.setsid()
        self._tools.control(_PR_SET_CHILD_SUBREAPER, 1)
        request.keeper = os.getpid()
        task = _fork()
        if task == 0:
            connection.close()
            return
        self._is_reaped = False
        try:
            self._keep_task(connection, request, task)
        finally:
            try:
                if not self._is_reaped:  # afterwards its number may be that of another process
                    os.kill(task, _SIGKILL)
            finally:
                os._exit(0)

    def _keep_task(self, connection: "Any", request: _Request, task: int) -> None:
        import signal

        for fd in request.descriptors:
            os.close(fd)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        reads, writes = os.pipe()
        os.set_blocking(reads, False)
        os.set_blocking(writes, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
        _write("/proc/self/oom_score_adj", self._oom)
        self._name(_KEEPER_NAME)
        connection.send(b"started %d %d %d\n" % (task, os.getpid(), LINE))
        poll = self._tools.select.poll()
        poll.register(connection.fileno(), self._tools.select.POLLIN)
        poll.register(reads, self._tools.select.POLLIN)
        while True:
            try:
                while True:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                    if pid == 0:
                        break
                    if pid == task:
                        self._is_reaped = True
                        connection.send(b"exit %d\n" % status)
            except ChildProcessError:
                pass
            events = [fd for fd, _ in poll.poll()]
            if connection.fileno() in events:
                return
            os.read(reads, 4096)

    def _become(self, request: _Request) -> None:
        """Become the task of a request: all that differs from a process that was started with its command."""
        tools = self._tools
        tools.control(_PR_SET_PDEATHSIG, _SIGKILL)
        if os.getppid() != request.keeper:
            os._exit(_NOT_RELEASED)
        os.setsid()
        _write("/proc/self/oom_score_adj", self._oom)
        output, gate, line = request.descriptors
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, end in ((0, null), (1, output), (2, output)):
            os.dup2(end, fd)
        os.dup2(line, LINE, inheritable=False)
        os.dup2(gate, LINE - 1, inheritable=False)
        _close_others({LINE, LINE - 1, *self._kept})
        tools.rename(request.command, [b"%s=%s" % pair for pair in request.environment])
        os.umask(request.umask)
        os.chdir(request.directory)
        self._set_environment(request)
        command = [os.fsdecode(word) for word in request.command]
        self._set_arguments(command)
        self._script.set(command)
        _renew_state(self._plan.script)
        here = os.getcwd()
        for names, name, path in self._names_of_directory:
            names[name] = here + path
        os.write(LINE, b"a")
        opened = os.read(LINE - 1, _LONGEST_OPEN)
        if opened[:1] != _GATE_OPEN:
            os._exit(_NOT_RELEASED)
        time.sleep(max(0.0, float(opened[1:]) - time.monotonic()))
        os.close(LINE - 1)
        data = self._output
        while data:
            data = data[os.write(1, data) :]

    def _set_environment(self, request: _Request) -> None:
        os.environ.clear()
        for name, value in request.environment:
            os.environb[name] = value
        for text, changed in self._changes.items():
            if changed is None:
                os.environ.pop(text, None)
            else:
                os.environ[text] = changed

    @staticmethod
    def _set_arguments(command: "list[str]") -> None:
        sys.argv[:] = ["-m", *command[3:]] if command[1] == "-m" else command[1:]
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[:] = command


_WARM_NAME = b"(fleet: imported modules for the next task)"
_KEEPER_NAME = b"(fleet: keeper of a task)"


def _close_others(kept: "set[int]") -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                continue


def _await_ready(ready: int, child: int) -> None:
    """Wait until the warm process listens, or has ended."""
    end = time.monotonic() + _READY_S
    os.set_blocking(ready, False)
    while time.monotonic() < end:
        try:
            os.read(ready, 1)
            break
        except BlockingIOError:
            time.sleep(0.001)  # the modules for an event are not imported yet
    else:
        os.kill(child, _SIGKILL)
    os.close(ready)
    os.waitpid(child, 0)


def _receive(socket: "Any", connection: "Any", descriptors: "list[int]") -> "dict[str, Any]":
    """Return what a supervisor sent: its size, a space, and the values as marshal encodes them."""
    size = socket.CMSG_SPACE(3 * 4)
    data, ancillary, _, _ = connection.recvmsg(1 << 16, size)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors += [
                int.from_bytes(content[at : at + 4], sys.byteorder) for at in range(0, len(content) // 4 * 4, 4)
            ]
    length, _, data = data.partition(b" ")
    pieces, missing = [data], int(length) - len(data)
    while missing > 0:
        piece = connection.recv(min(missing, 1 << 16))
        if not piece:
            raise EOFError
        pieces.append(piece)
        missing -= len(piece)
    return sys.modules["marshal"].loads(b"".join(pieces))  # type: ignore[no-any-return]


def _find_paths(directory: str) -> "list[tuple[dict[str, Any], str, str]]":
    """Return the names in modules whose value is a directory, or a path in it, each with the rest of its path.

    Such as multiprocessing.process.ORIGINAL_DIR.
    """
    result = []
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        for name, value in list(names.items()):
            if type(value) is str and (value + os.sep).startswith(directory + os.sep):
                result.append((names, name, value[len(directory) :]))
    return result


def _renew_state(script: str) -> None:
    """Renew what a fork shares and a new process has of its own: random states, keys, and caches."""
    modules = sys.modules
    if "logging" in modules:
        vars(modules["logging"])["_startTime"] = time.time_ns() if sys.version_info >= (3, 13) else time.time()
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if "torch" in modules:
        modules["torch"].default_generator.seed()  # those of GPUs are seeded when these are initialized
    if "multiprocessing.process" in modules:
        modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
    if "threading" in modules and hasattr(modules["threading"].main_thread(), "_set_native_id"):
        modules["threading"].main_thread()._set_native_id()
    if "tempfile" in modules and modules["tempfile"].tempdir:
        vars(modules["tempfile"])["tempdir"] = None
        modules["tempfile"].gettempdir()  # TMPDIR is the job's own
    if "linecache" in modules:
        modules["linecache"].cache.pop(script, None)
    for finder in sys.meta_path:
        reporter = getattr(finder, "_reporter", None)
        if reporter is not None:  # of train.agent.injected.observer
            reporter.__init__(LINE)


if TEXT:
    _begin(_Plan(TEXT), globals()["HOOK"])
