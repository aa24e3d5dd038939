"""Let the interpreter of a task dump its stacks and be observed; leave no other trace. For Python 3.8 and later.

It imports only modules that are imported already. An error in the import of the next sitecustomize goes to the site
module, as without this module.
"""

import os
import sys

TYPE_CHECKING = False  # typing is not imported before the script
if TYPE_CHECKING:
    from typing import Any

_OBSERVED = ("tensorflow", "keras", "tf_keras", "jax", "torch")  # modules whose import takes seconds


class _Finder:
    """Load the observer and the adaptations when the script first imports a large module."""

    def __init__(self, here: str, line: int) -> None:
        self.here = here
        self.line = line

    def find_spec(self, name: str, path: "object" = None, target: "object" = None) -> "object":
        finders: "list[object]" = sys.meta_path  # type: ignore[assignment]
        if name not in _OBSERVED or self not in finders:
            return None
        finders.remove(self)
        patches: "Any" = {}
        try:
            if os.environ.get("FLEET_ADAPT"):
                patches = _load(self.here, "adaptations").install()
            finders.insert(0, _load(self.here, "observer").Observer(self.line, _OBSERVED, patches))
        except Exception as error:  # the script runs all the same
            os.write(2, ("fleet: the script runs without adaptations: %r\n" % error).encode())
        for finder in finders:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                return spec
        return None


def _restore_path(here: str, had: bool) -> None:
    """Remove `here` from the paths, also from what a shell has made of PYTHONPATH.

    If it was not set, an empty entry remains where a shell has extended it: the current directory.
    """
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    entries = [entry for entry in entries if entry != here] if had else ["" if e == here else e for e in entries]
    is_set = had or entries != [""]
    cwd = os.getcwd() if is_set and not had else ""
    sys.path[:] = [cwd if entry == here else entry for entry in sys.path if cwd or entry != here]
    sys.path_importer_cache.pop(here, None)
    if is_set:
        os.environ["PYTHONPATH"] = os.pathsep.join(entries)
    else:
        os.environ.pop("PYTHONPATH", None)


def _dump_stacks_on(number: int, line: int) -> None:
    was_imported = "faulthandler" in sys.modules
    try:
        import faulthandler

        faulthandler.register(number, line, all_threads=True)
    except Exception:  # the task runs without it
        pass
    if not was_imported:
        sys.modules.pop("faulthandler", None)


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


def _begin() -> None:
    here = __file__.rpartition("/")[0]
    text = os.environ.pop("FLEET_HOOK", "")
    if text == "prove":
        os.environ["FLEET_HOOK"] = "proven"
    had, is_task, numbers = text.partition(":")
    _restore_path(here, had != "0")
    if is_task:
        line, number = map(int, numbers.split(":"))
        try:
            os.set_inheritable(line, False)
        except OSError:  # the parent process has closed it
            return
        _dump_stacks_on(number, line)
        sys.meta_path.insert(0, _Finder(here, line))  # type: ignore[arg-type]


def _import_next() -> None:
    """Import the sitecustomize that would have been found without this one."""
    sys.modules.pop("sitecustomize", None)
    __import__("sitecustomize")  # an ImportError goes to the site module, which reports why


if __name__ == "sitecustomize":
    _begin()
    _import_next()
