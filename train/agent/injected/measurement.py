"""Measure the training steps of a script that uses TensorFlow, and end its process after the last one.

The hook (train.agent.injected.sitecustomize) executes this before the script if `VARIABLE` is set. A training step is
a call of the ``tf.function`` that computes gradients, or, without one, a computation of gradients. Keras' ``fit`` and
custom loops both make such calls. The observations are written to a file, one line each:

    step BEGAN ENDED               seconds of a monotonic clock
    gradient BYTES DTYPE           for each variable, when the step is traced
    loop                           gradients are computed in a loop within one call
    input SECONDS                  to take one further batch from the data set, without a step
    done

For Python 3.8 and later, and TensorFlow 2.4 and later. Modules are imported when the script imports them.
"""

import functools
import os
import sys
import time
from importlib.machinery import ModuleSpec, PathFinder

TYPE_CHECKING = False  # typing is not imported before the script
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, TextIO

VARIABLE = "FLEET_MEASURE"
ALONE = "alone"  # ends after some time, too, and measures the data set
TOGETHER = "together"  # ends after a number of steps that all workers make

WARMUP = 2  # steps that are not counted: they trace and compile
_ENOUGH = ((30, 5.0), (5, 20.0))  # steps, and seconds after which they are enough for one worker
_EXTRA = 2  # further steps of several workers: the others may still receive what the last one sent
_INPUTS = 20  # batches that are taken from the data set
_INPUTS_S = 5.0
_LOOPS = ("Dataset_reduce", "Dataset_scan")


class Recorder:
    """Record the steps of this process.

    Args:
        kind: `ALONE` or `TOGETHER`.
        steps: Number of steps to count.
        path: The file, which must not exist; another process of the script may be the one that trains.
    """

    def __init__(self, kind: str, steps: int, path: str) -> None:
        self.kind = kind
        self.steps = steps
        self.path = path
        self.running: "Any" = None  # the tf.function of the outermost call
        self.step: "Any" = None  # the tf.function of a training step
        self.patched: "list[type]" = []  # classes with a measured call
        self._eager: "Any" = None  # the variable whose gradient begins an eager step
        self._seen: "dict[int, Any]" = {}  # variables with gradients; they are kept, so that no ID is used twice
        self._count = 0
        self._began_at = 0.0
        self._file: "TextIO | None" = None
        self._is_other = False

    def write(self, line: str) -> None:
        """Write a line, unless another process writes."""
        if self._file is None and not self._is_other:
            try:
                self._file = open(self.path, "x", buffering=1)  # noqa: SIM115
            except OSError:
                self._is_other = True
        if self._file is not None:
            self._file.write(line + "\n")

    def note_gradients(self, sources: "Any", gradients: "Any") -> None:
        """Record the gradients of variables, and which call is a step."""
        from tensorflow.python.util import nest

        flat = nest.flatten(sources)
        values = gradients if isinstance(gradients, list) else nest.flatten(gradients)
        pairs = [(source, value) for source, value in zip(flat, values) if hasattr(source, "assign")]  # noqa: B905 - strict: Python 3.10
        if not pairs:
            return
        if self.step is None and self.running is not None:
            self.step = self.running
        for source, value in pairs:
            if id(source) not in self._seen and value is not None:
                self._seen[id(source)] = source
                self.write("gradient %d %s" % (_size(source, value), value.dtype.base_dtype.name))
        if self.running is not None and _is_in_loop():
            self.write("loop")
        if self.running is None and self.step is None:
            self._note_eager(pairs[0][0])

    def _note_eager(self, variable: "Any") -> None:
        if self._eager is None:
            self._eager = variable
        if variable is self._eager:
            at = time.monotonic()
            self.end_step(at, at, ())

    def end_step(self, began: float, ended: float, arguments: "Any") -> None:
        """Record a step; end the process after the last one."""
        self._count += 1
        self.write("step %.6f %.6f" % (began, ended))
        self._began_at = self._began_at or ended
        counted = self._count - WARMUP
        is_alone, seconds = self.kind == ALONE, ended - self._began_at
        is_enough = is_alone and any(counted >= least and seconds > least_s for least, least_s in _ENOUGH)
        if counted >= self.steps + (0 if is_alone else _EXTRA) or is_enough:
            if self._is_other:
                return
            if is_alone:
                self._measure_input(arguments)
            self.write("done")
            sys.stdout.flush()
            os._exit(0)

    def _measure_input(self, arguments: "Any") -> None:
        iterator: "Any" = next((value for value in arguments if hasattr(value, "__next__")), None)
        began = time.monotonic()
        try:
            for _ in range(_INPUTS if iterator is not None else 0):
                at = time.monotonic()
                next(iterator)
                ended = time.monotonic()
                self.write("input %.6f" % (ended - at))
                if ended - began > _INPUTS_S:
                    break
        except Exception:  # noqa: BLE001, S110 - the end of the data, or an iterator of another kind
            pass


def _size(variable: "Any", gradient: "Any") -> int:
    """Return the number of bytes of a dense gradient; 0 if the shape of the variable is unknown."""
    return int(variable.shape.num_elements() or 0) * int(gradient.dtype.size)


def _is_in_loop() -> bool:
    from tensorflow.python.framework import ops

    graph = ops.get_default_graph()
    while graph is not None:
        name = str(getattr(graph, "name", ""))
        if type(graph).__name__ == "WhileBodyFuncGraph" or any(word in name for word in _LOOPS):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _await_values(result: "Any") -> bool:
    """Wait until a device has computed a step: its call may return earlier. Return False at the end of the data."""
    from tensorflow.python.util import nest

    if hasattr(result, "has_value") and hasattr(result, "get_value"):  # Keras 3
        if not result.has_value():
            return False
        result = result.get_value()
    for value in nest.flatten(result, expand_composites=True):
        if hasattr(value, "numpy"):
            value.numpy()
            break
    return True


def measure_functions(module: "ModuleType", recorder: Recorder) -> None:
    """Wrap the call of each ``tf.function``."""
    kind = getattr(module, "Function", None)
    if kind is None or kind in recorder.patched:  # an older module has the name of a newer one's class
        return
    recorder.patched.append(kind)
    original = kind.__call__

    @functools.wraps(original)
    def call(self: "Any", *args: "Any", **kwargs: "Any") -> "Any":
        from tensorflow.python.eager import context

        if recorder.running is not None or not context.executing_eagerly():
            return original(self, *args, **kwargs)
        recorder.running = self
        began = time.monotonic()
        try:
            result = original(self, *args, **kwargs)
        finally:
            recorder.running = None
        if recorder.step is self and _await_values(result):
            recorder.end_step(began, time.monotonic(), (*args, *kwargs.values()))
        return result

    kind.__call__ = call


def measure_gradients(module: "ModuleType", recorder: Recorder) -> None:
    """Wrap the computation of gradients."""
    kind = getattr(module, "GradientTape", None)
    original: "Callable[..., Any] | None" = getattr(kind, "gradient", None)
    if kind is None or original is None:
        return

    @functools.wraps(original)
    def gradient(self: "Any", target: "Any", sources: "Any", *args: "Any", **kwargs: "Any") -> "Any":
        result = original(self, target, sources, *args, **kwargs)
        try:
            recorder.note_gradients(sources, result)
        except (AttributeError, ImportError, TypeError, ValueError) as error:  # TensorFlow's internals have changed
            recorder.write("error %r" % error)
        return result

    kind.gradient = gradient


_PATCHES = {
    "tensorflow.python.eager.backprop": measure_gradients,
    "tensorflow.python.eager.def_function": measure_functions,
    "tensorflow.python.eager.polymorphic_function.polymorphic_function": measure_functions,
}


class MeasuringFinder:
    """Wrap functions of TensorFlow's modules when these are imported.

    Args:
        recorder: Takes the observations.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "ModuleSpec | None":
        """Return the spec of a module that is wrapped."""
        patch = _PATCHES.get(name)
        spec = PathFinder.find_spec(name, path, target) if patch else None
        if patch is None or spec is None or spec.loader is None:
            return None
        wrap, execute = patch, spec.loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            execute(module)
            wrap(module, self._recorder)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if __name__ == "fleet_measurement":
    _kind, _steps, _path = os.environ.pop(VARIABLE).split(":", 2)
    sys.meta_path.insert(0, MeasuringFinder(Recorder(_kind, int(_steps), _path)))
