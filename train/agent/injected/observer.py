r"""Report what a task does before its first step, and how long its steps and its input take.

The hook (train.agent.injected.sitecustomize) executes this when the script first imports a large module. Reports go
to the supervisor through the hook's pipe: a record separator, a JSON object, and a newline (RFC 7464):

    {"activity": "importing tensorflow"}             what has just begun; null: nothing of this kind
    {"step_s": 0.23, "input_s": 0.21, "python_s": 0.01}    means of the last seconds, per step
    {"process": 4711, "handles_sigterm": false}    after each change, once a strategy is initialized

- ``step_s``: time from one call of the training's tf.function to the next one.
- ``input_s``: time that the iterator of a distributed data set waits for the script's pipeline, per step.
- ``python_s``: time outside of tf.functions, per step; null with GPUs, where functions return before they end.
- ``handles_sigterm``: False if only TensorFlow catches SIGTERM, which then does not end the process.

Nothing is guessed: each activity begins and ends with a call that is observed. Steps are measured only in a cluster
of several workers. No thread is started. Errors in here are suppressed: TensorFlow's internals may change, and then
less is reported. For Python 3.8 and later. Modules are imported when the script imports them, never earlier.
"""

import os
import sys
import time
from importlib.machinery import SourceFileLoader

TYPE_CHECKING = False  # typing is not imported before the script
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

WAITING = "waiting for the other workers"
_TRACING = "tracing a tf.function"
_DATA = "loading data"
SERVING = "serving the other tasks"

_INITIALIZE = "_initialize_multi_worker"
_WAITS = {
    "tensorflow.python.distribute.collective_all_reduce_strategy": (
        "CollectiveAllReduceExtended",
        _INITIALIZE,
        WAITING,
    ),
    "tensorflow.python.distribute.parameter_server_strategy_v2": (
        "ParameterServerStrategyV2",
        "_connect_to_cluster",
        WAITING,
    ),
    "tensorflow.python.training.server_lib": ("Server", "join", SERVING),
}
_BUILDING = "tf.function-graph_building"  # name of TensorFlow's own trace event
_NOT_FUNCTIONS = ("tf.constant", _BUILDING)
_WINDOW_S = 2.0
_STEPS_LEAST = 3  # in a window


class HookReporter:
    """Write reports into the hook's pipe, from the process in which the hook ran.

    Args:
        pipe: Its file descriptor. If the script replaces it, nothing more is written.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._pid = os.getpid()
        self._identity = self._identify()
        self._stack: "list[str]" = []
        self._watches = False  # TensorFlow catches SIGTERM
        self._handles: "bool | None" = None  # as it was reported

    def _identify(self) -> "tuple[int, int]":
        try:
            stat = os.fstat(self._pipe)
        except OSError:  # the script has closed it
            return 0, 0
        return stat.st_dev, stat.st_ino

    def attach(self, pipe: int) -> None:
        """Report from this process, which was forked, into a pipe."""
        self._pipe, self._pid = pipe, os.getpid()
        self._identity = self._identify()

    def begin(self, activity: str) -> None:
        """Report that an activity begins; it is reported until it ends, or until another one begins in it."""
        self._stack.append(activity)
        self._report_activity()

    def end(self) -> None:
        """Report that the latest activity has ended."""
        if self._stack:
            self._stack.pop()
        self._report_activity()

    def _report_activity(self) -> None:
        self.write('{"activity": %s}' % ('"%s"' % self._stack[-1] if self._stack else "null"))

    def watch_sigterm(self) -> None:
        """Report now and after each change whether the script handles SIGTERM: from now on, TensorFlow catches it."""
        self._watches = True
        self.report_sigterm()

    def report_sigterm(self) -> None:
        """Report a change of the script's handler of SIGTERM."""
        signal: "Any" = sys.modules.get("signal")
        if self._watches and signal is not None:
            handles = signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
            if handles is not self._handles:
                values = (self._pid, "true" if handles else "false")
                if self.write('{"process": %d, "handles_sigterm": %s}' % values):
                    self._handles = handles

    def write(self, text: str) -> bool:
        """Write a JSON object; return False if a full pipe has lost it."""
        try:
            if os.getpid() == self._pid and self._identify() == self._identity:
                os.write(self._pipe, b"\x1e%s\n" % text.encode())
        except OSError:
            return False
        return True


class StepClock:
    """Measure the outermost calls of tf.functions, and the time that their data sets wait for input.

    Args:
        reporter: Takes the means of each window.
    """

    def __init__(self, reporter: HookReporter) -> None:
        self.enabled = False
        self.iterators: "list[Any]" = []  # weak references to the iterators on the devices
        self._reporter = reporter
        self._depth = 0
        self._begun = 0.0
        self._calls: "dict[str, tuple[int, float]]" = {}  # count and seconds, by function
        self._window = 0.0
        self._waited: "dict[int, float]" = {}  # by iterator

    def enter(self) -> None:
        """Record that a tf.function is called."""
        self._depth += 1
        if self._depth == 1:
            self._begun = time.monotonic()

    def exit(self, name: str) -> None:
        """Record that a tf.function returns."""
        self._depth -= 1
        if self._depth or not self.enabled:
            return
        now = time.monotonic()
        count, seconds = self._calls.get(name, (0, 0.0))
        self._calls[name] = (count + 1, seconds + now - self._begun)
        if not self._window:
            self._begin_window(now)
        elif now - self._window >= _WINDOW_S and self._calls[name][0] >= _STEPS_LEAST:
            self._report(now)

    def _begin_window(self, now: float) -> None:
        self._calls = {}
        self._window = now
        self._read_waits()

    def _report(self, now: float) -> None:
        window, calls = now - self._window, self._calls
        count = max(calls.values(), key=lambda call: call[1])[0]
        waited = self._read_waits()
        outside = max(0.0, window - sum(seconds for _, seconds in calls.values())) if not _count_gpus() else None
        times = {"step_s": window, "input_s": waited, "python_s": outside}
        texts = [
            '"%s": %s' % (name, "null" if seconds is None else "%.6f" % (seconds / count))
            for name, seconds in times.items()
        ]
        self._reporter.write("{%s}" % ", ".join(texts))
        self._calls = {}
        self._window = time.monotonic()

    def _read_waits(self) -> "float | None":
        """Return the seconds that iterators have waited since the last call; None if that is unknown."""
        before, self._waited = self._waited, {}
        is_measured = False
        total = 0.0
        for reference in list(self.iterators):
            iterator = reference()
            if iterator is None:
                self.iterators.remove(reference)
                continue
            waited = _read_wait(iterator)
            if waited is not None:
                is_measured = True
                self._waited[id(iterator)] = waited
                total += max(0.0, waited - before.get(id(iterator), 0.0))
        return total if is_measured else None


def _read_wait(iterator: "Any") -> "float | None":
    """Return how long an iterator on a device has waited for the data set on the host, in seconds."""
    try:
        from tensorflow.python.data.experimental.ops.iterator_model_ops import get_model_proto

        nodes = get_model_proto(iterator).nodes.values()
        waits = [node.processing_time / 1e9 for node in nodes if node.name == "Generator"]
    except Exception:  # an older TensorFlow, a data set without a model, or one on a GPU
        return None
    return sum(waits) if waits else None


def _count_gpus() -> int:
    try:
        return int(sys.modules["tensorflow.python.eager.context"].context().num_gpus())
    except Exception:
        return 1  # unknown


def _print_target(error: "Exception | None", code: "Any") -> None:
    """Print the file that Keras could not download, for the diagnosis: `get_file` derives its path in many ways.

    A path below the directory in which a login begins is written with ``~``.
    """
    trace = error.__traceback__ if error is not None else None
    while trace is not None and trace.tb_frame.f_code is not code:
        trace = trace.tb_next
    names = trace.tb_frame.f_locals if trace is not None else {}
    target = str(names.get("download_target") or names.get("fpath") or "")
    if target and not os.path.exists(target):
        import pwd

        home = pwd.getpwuid(os.getuid()).pw_dir.rstrip("/") + "/"
        shown = "~/" + target[len(home) :] if target.startswith(home) else os.path.abspath(target)
        os.write(2, ("fleet: could not download %s to %s\n" % (names.get("origin"), shown)).encode())


class Observer:
    """Wrap and adapt modules when they are imported.

    Args:
        pipe: Takes the reports.
        modules: Names of modules whose import takes seconds.
        adaptations: Each adapts the module of that name.
    """

    def __init__(
        self, pipe: int, modules: "tuple[str, ...]", adaptations: "dict[str, Callable[[Any], None]]"
    ) -> None:
        self._reporter = HookReporter(pipe)
        self._modules = modules
        self._steps = StepClock(self._reporter)
        self._patches: "dict[str, Callable[[Any], None]]" = {
            "tensorflow.python.profiler.trace": self._patch_trace,
            **dict.fromkeys(_WAITS, self._patch_waits),
            "tensorflow.python.data.ops.multi_device_iterator_ops": self._patch_iterators,
            "keras.src.utils.file_utils": self._patch_download,
            "tf_keras.src.utils.data_utils": self._patch_download,
            **adaptations,
        }

    def attach(self, pipe: int) -> None:
        """Report from this process, which was forked, into a pipe."""
        self._reporter.attach(pipe)

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """Return the spec of a module that is observed, as the other finders return it, with a wrapped loader."""
        if name not in self._modules and name not in self._patches:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if type(spec.loader) is SourceFileLoader:
                        spec.loader = ObservingLoader(spec.loader, self)  # type: ignore[assignment]
                    return spec
        return None

    def execute(self, loader: "Any", module: "ModuleType") -> None:
        """Execute a module, and wrap what is observed in it."""
        name = module.__name__
        if name in self._modules:
            self._reporter.begin("importing " + name)
        try:
            loader.exec_module(module)
        finally:
            if name in self._modules:
                self._reporter.end()
        if name in self._patches:
            try:  # noqa: SIM105 - contextlib may not be imported
                self._patches[name](module)
            except Exception:  # TensorFlow's internals have changed
                pass

    def _wrap(self, owner: "Any", name: str, activity: str, after: "Callable[[Any], None] | None" = None) -> None:
        """Report an activity while a function runs; call `after` with the exception that it raised, or None."""
        original, reporter = getattr(owner, name), self._reporter

        def wrapper(*args: "Any", **kwargs: "Any") -> "Any":
            failure: "Any" = None
            reporter.begin(activity)
            try:
                return original(*args, **kwargs)
            except Exception as error:
                failure = error
                raise
            finally:
                reporter.end()
                if after is not None:
                    after(failure)

        setattr(owner, name, _imitate(wrapper, original))

    def _patch_waits(self, module: "Any") -> None:
        owner, name, activity = _WAITS[module.__name__]
        self._wrap(getattr(module, owner), name, activity, self._enable if name == _INITIALIZE else None)

    def _enable(self, _error: "Any") -> None:
        self._steps.enabled = True
        self._reporter.watch_sigterm()

    def _patch_download(self, module: "Any") -> None:
        code = module.get_file.__code__
        self._wrap(module, "get_file", _DATA, lambda error: _print_target(error, code))

    def _patch_iterators(self, module: "Any") -> None:
        """Collect the iterators of distributed data sets."""
        import weakref

        original, steps = module.OwnedMultiDeviceIterator.__init__, self._steps

        def wrapper(self: "Any", *args: "Any", **kwargs: "Any") -> None:
            original(self, *args, **kwargs)
            if "components" not in kwargs and steps.enabled:
                steps.iterators += [weakref.ref(iterator) for iterator in self._device_iterators]

        module.OwnedMultiDeviceIterator.__init__ = _imitate(wrapper, original)

    def _patch_trace(self, module: "Any") -> None:
        """Observe calls of tf.functions, and their tracing, by TensorFlow's own trace events.

        These calls return before the function is called, so that no frame is added to any traceback.
        """
        kind, reporter, steps = module.Trace, self._reporter, self._steps
        create, enter, leave = kind.__init__, kind.__enter__, kind.__exit__
        outer: "list[Any]" = []  # the outermost call, while it is the first one of its function

        def init(self: "Any", name: str, **kwargs: "Any") -> None:
            create(self, name, **kwargs)
            self.fleet_name = name

        def begin(self: "Any") -> "Any":
            reporter.report_sigterm()
            name = self.fleet_name
            if name == _BUILDING:
                if not outer:
                    outer.append(self)
                    reporter.begin(_TRACING)
            elif name not in _NOT_FUNCTIONS:
                steps.enter()
            return enter(self)

        def end(self: "Any", *args: "Any") -> None:
            leave(self, *args)
            if outer and outer[-1] is self:
                outer.pop()
                reporter.end()
            elif self.fleet_name not in _NOT_FUNCTIONS:
                steps.exit(self.fleet_name)

        kind.__init__ = _imitate(init, create)
        kind.__enter__ = _imitate(begin, enter)
        kind.__exit__ = _imitate(end, leave)


def _imitate(wrapper: "Any", original: "Any") -> "Any":
    import functools

    return functools.wraps(original)(wrapper)


class ObservingLoader:
    """Load a module, and observe it.

    Args:
        loader: The module's own loader.
        observer: Of the module.
    """

    def __init__(self, loader: "Any", observer: Observer) -> None:
        self.loader = loader
        self.observer = observer

    def __getattr__(self, name: str) -> "Any":
        return getattr(self.loader, name)

    def create_module(self, spec: "Any") -> "Any":
        """Return what the module's own loader creates."""
        return self.loader.create_module(spec)

    def exec_module(self, module: "Any") -> None:
        """Execute the module with its own loader."""
        module.__spec__.loader = module.__loader__ = self.loader
        self.observer.execute(self.loader, module)
