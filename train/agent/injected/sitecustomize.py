"""Hold a task of fleet until its attempt starts; leave no trace afterwards. For Python 3.8 and later.

It imports only modules that are imported already, and waits when only the import of the next sitecustomize is left.
An error of that import goes to the site module, as without this module.
"""

import os
import sys

TYPE_CHECKING = False  # typing is not imported before the script
if TYPE_CHECKING:
    from typing import Any

_OBSERVED = ("tensorflow", "keras", "tf_keras", "jax", "torch")  # modules whose import takes seconds


class _ObserverFinder:
    """Load the observer when the script first imports a large module."""

    def __init__(self, here: str, line: int) -> None:
        self.here = here
        self.line = line

    def find_spec(self, name: str, path: "object" = None, target: "object" = None) -> "object":
        finders: "list[object]" = sys.meta_path  # type: ignore[assignment]
        if name not in _OBSERVED or self not in finders:
            return None
        at = finders.index(self)
        try:
            module = _load(self.here, "observer")
            observer = module.Observer(module.HookReporter(self.line), _OBSERVED)
        except Exception:  # the script runs without it
            del finders[at]
            return None
        finders[at] = observer
        return observer.find_spec(name, path, target)


def _remove_directory(here: str, keeps_gap: bool) -> None:
    cwd = os.getcwd() if keeps_gap else ""
    sys.path[:] = [cwd if entry == here else entry for entry in sys.path if cwd or entry != here]
    sys.path_importer_cache.pop(here, None)


def _restore_pythonpath(had: str, path: str) -> None:
    if had == "1":
        os.environ["PYTHONPATH"] = path
    else:
        os.environ.pop("PYTHONPATH", None)


def _without(here: str, entries: "list[str]", keeps_gap: bool) -> "tuple[str, str]":
    """Return what a shell would have made of PYTHONPATH without `here`; an empty entry is the current directory."""
    left = ["" if entry == here else entry for entry in entries if keeps_gap or entry != here]
    return "1" if left else "0", os.pathsep.join(left)


def _dump_stacks_on(number: int, line: int) -> None:
    was_imported = "faulthandler" in sys.modules
    try:
        import faulthandler

        faulthandler.register(number, line, all_threads=True)
    except Exception:  # the task runs without it
        pass
    if not was_imported:
        sys.modules.pop("faulthandler", None)


def _execute(here: str, variable: str, name: str) -> None:
    """Execute the module `name` of the directory `here` if the variable is set."""
    if os.environ.get(variable):
        try:
            _load(here, name)
        except Exception as error:  # the script runs all the same
            os.write(2, ("fleet: the script runs without %s: %r\n" % (name, error)).encode())


def _load(here: str, name: str) -> "Any":
    """Return the module `name` of the directory `here`, which is not added to the imported modules."""
    from importlib.machinery import SourceFileLoader

    class Loader(SourceFileLoader):
        """Load a source file without a cache, under a name that shows in tracebacks."""

        def path_stats(self, path: "Any") -> "Any":
            raise OSError

        def source_to_code(self, data: "Any", path: "Any", **_: "Any") -> "Any":  # type: ignore[override]
            return compile(data, "<frozen fleet>", "exec")

    module = type(sys)("fleet_" + name)
    Loader(module.__name__, here + "/" + name + ".py").exec_module(module)
    return module


def _hold(gate: int, line: int) -> None:
    """Report that the task has arrived, and wait until the gate is open and the start time has come."""
    import time  # the interpreter has imported it

    try:
        os.write(line, b"a")
        if gate >= 0:
            opened = os.read(gate, 64)
            if opened[:1] != b"g":
                os._exit(125)
            time.sleep(max(0.0, float(opened[1:]) - time.monotonic()))
            os.close(gate)
    except OSError:
        os._exit(125)


def _begin() -> None:
    """Hold the task."""
    here = __file__.rpartition("/")[0]
    text = os.environ.pop("FLEET_HOOK", "")
    if text == "prove":
        os.environ["FLEET_HOOK"] = "proven"
    given = text.split(":", 5)
    if len(given) < 6:
        _remove_directory(here, False)
        return
    pid, gate, line, number = (int(value) for value in given[:4])
    had, path = given[4:]
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    keeps_gap = pid == 0 and had == "0" and len(entries) > 1
    _remove_directory(here, keeps_gap)
    if pid == 0:
        had, path = _without(here, entries, keeps_gap)
    _restore_pythonpath(had, path)
    if pid in (0, os.getpid()):
        try:
            os.set_inheritable(line, False)
        except OSError:  # the parent process has closed it
            return
        _dump_stacks_on(number, line)
        sys.meta_path.insert(0, _ObserverFinder(here, line))  # type: ignore[arg-type]
        _execute(here, "FLEET_ADAPT", "adaptations")
        if pid:
            _hold(gate, line)


def _import_next() -> None:
    """Import the sitecustomize that would have been found without this one."""
    sys.modules.pop("sitecustomize", None)
    __import__("sitecustomize")  # an ImportError goes to the site module, which reports why


if __name__ == "sitecustomize":
    _begin()
    _import_next()
