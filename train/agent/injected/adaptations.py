"""Adapt a task's interpreter, so that scripts for older TensorFlow versions run on several workers.

The hook (train.agent.injected.sitecustomize) executes this before the script if `VARIABLE` names an adaptation:

- ``keras``: ``import keras`` imports tf-keras, whose fit works with several workers; Keras 3's does not
  (https://github.com/keras-team/keras/issues/20585).
- ``shard``: a data set with AutoShardPolicy.AUTO and fewer files than workers is sharded by elements. TensorFlow
  would fail: "Could not apply FILE based sharding"
  (https://www.tensorflow.org/api_docs/python/tf/data/experimental/AutoShardPolicy).
- ``tf_config``: a resolver reads the job's TF_CONFIG, which the script has replaced by addresses of other hosts. The
  variable `JOB` contains it: R may set TF_CONFIG before its Python starts.

For Python 3.8 and later. Modules are imported when the script imports them, never earlier.
"""

import importlib
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

TYPE_CHECKING = False  # typing is not imported before the script
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

VARIABLE = "FLEET_ADAPT"
KERAS = "keras"
SHARD = "shard"
TF_CONFIG = "tf_config"
JOB = "FLEET_TF_CONFIG"
_RESOLVERS = "tensorflow.python.distribute.cluster_resolver.tfconfig_cluster_resolver"


class AliasFinder:
    """Find ``keras`` and its submodules as those of ``tf_keras``."""

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "ModuleSpec | None":
        """Return the spec of a module of ``keras``."""
        if name.partition(".")[0] != "keras":
            return None
        return ModuleSpec(name, AliasLoader("tf_" + name))  # type: ignore[arg-type]


class AliasLoader:
    """Load a module under another name.

    Args:
        real: Its own name.
    """

    def __init__(self, real: str) -> None:
        self.real = real
        self.spec: "ModuleSpec | None" = None

    def create_module(self, spec: ModuleSpec) -> "ModuleType":
        """Return the module."""
        module = importlib.import_module(self.real)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: "ModuleType") -> None:
        """Restore the spec, which the import system has replaced by that of the alias."""
        module.__spec__ = self.spec


class PatchFinder:
    """Adapt modules when they are loaded.

    Args:
        modules: Their names.
        adapt: Adapts a module.
    """

    def __init__(self, modules: "tuple[str, ...]", adapt: "Callable[[Any], None]") -> None:
        self.modules = modules
        self.adapt = adapt

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "ModuleSpec | None":
        """Return the spec of a module that is adapted."""
        if name not in self.modules:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = PatchLoader(spec.loader, self.adapt)  # type: ignore[assignment]
        return spec


class PatchLoader:
    """Load a module, and adapt it.

    Args:
        loader: The module's own loader.
        adapt: Adapts the module.
    """

    def __init__(self, loader: "Any", adapt: "Callable[[Any], None]") -> None:
        self.loader = loader
        self.adapt = adapt

    def __getattr__(self, name: str) -> "Any":
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> "Any":
        """Return what the module's own loader creates."""
        return self.loader.create_module(spec)

    def exec_module(self, module: "Any") -> None:
        """Execute the module, and adapt it."""
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.adapt(module)


def adapt_data(module: "Any") -> None:
    """Wrap `get_distributed_dataset` of a module from which all strategies call it."""
    original = getattr(module, "get_distributed_dataset", None)
    if original is not None:
        module.get_distributed_dataset = shard_by_elements(original)


def adapt_resolver(module: "Any") -> None:
    """Let the public class `TFConfigClusterResolver` read the job's TF_CONFIG."""
    import contextlib
    import functools

    cls: "Any" = getattr(module, "TFConfigClusterResolver", object)

    @functools.wraps(cls.__init__)
    def begin(*args: "Any", original: "Any" = cls.__init__, **kwargs: "Any") -> None:
        with contextlib.suppress(Exception):  # the strategy is created as without fleet
            restore_tf_config()
        original(*args, **kwargs)

    if cls is not object:
        cls.__init__ = begin


def restore_tf_config() -> None:
    """Replace the TF_CONFIG that the script has set; one that it removed, or set in a process of its own, stays."""
    import json

    job, given = os.environ.get(JOB), os.environ.get("TF_CONFIG")
    variables, _, location = os.environ.get(VARIABLE, "").partition(TF_CONFIG + ":")[2].partition(":")
    processes = sys.modules.get("multiprocessing")
    is_child = processes is not None and processes.parent_process() is not None
    if not job or not given or given == job or is_child or any(name in os.environ for name in variables.split("+")):
        return
    number, other = _count_workers(job), _count_workers(given)
    if not other or json.loads(given) != json.loads(job):
        os.environ["TF_CONFIG"] = job
        if os.environ.get("FLEET_RANK") == "0":
            text = "the script sets TF_CONFIG (%s): using this job's, %d worker%s; `--no-adapt` turns this off"
            _report(TF_CONFIG, text % (location, number, "s" if number > 1 else ""))
            text = "warning: the script's TF_CONFIG has %d workers, this job has %d: check numbers that the script "
            if other not in (0, number):
                _report("workers", text % (other, number) + "computes from it, such as the batch size")


def _count_workers(text: str) -> int:
    """Return the number of workers in a TF_CONFIG; 0 if it is invalid."""
    import json

    try:
        cluster = json.loads(text)["cluster"]
        return sum(len(cluster.get(name, ())) for name in ("chief", "master", "worker"))
    except Exception:  # whatever the script has written
        return 0


def shard_by_elements(original: "Callable[..., Any]") -> "Callable[..., Any]":
    """Return `get_distributed_dataset` with data sets that are sharded by elements if they have too few files."""
    import contextlib
    import functools
    import inspect

    signature = inspect.signature(original)

    @functools.wraps(original)
    def get_distributed_dataset(*args: "Any", **kwargs: "Any") -> "Any":
        given = signature.bind(*args, **kwargs)
        with contextlib.suppress(Exception):  # TensorFlow's internals have changed: it behaves as without fleet
            _adapt(given.arguments)
        return original(*given.args, **given.kwargs)

    return get_distributed_dataset


def _adapt(arguments: "dict[str, Any]") -> None:
    from tensorflow.python.data.ops.options import AutoShardPolicy, Options

    dataset = arguments["dataset"]
    context = arguments.get("input_context")
    workers = context.num_input_pipelines if context else len(arguments["input_workers"].worker_devices)
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if workers < 2 or policy != AutoShardPolicy.AUTO:
        return
    counts = [_count_elements(files, workers) for files in _file_lists(dataset)]
    fewest = min(counts, default=workers)
    if fewest >= workers:
        return
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA
    arguments["dataset"] = dataset.with_options(options)
    if context is None or context.input_pipeline_id == 0:
        number = "1 file" if fewest == 1 else "%d files" % fewest
        text = (
            "the data set has %s for %d workers: sharing it out by elements (AutoShardPolicy.DATA) "
            "instead of by files; `--no-adapt` turns this off" % (number, workers)
        )
        _report(SHARD, text)


def _file_lists(dataset: "Any") -> "Iterator[Any]":
    """Yield the data sets whose elements TensorFlow takes for files: a function with a reader is mapped over them."""
    waiting, seen = [dataset], set()
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        current = getattr(current, "_impl", current)
        if any(_reads_files(function.function.graph.as_graph_def()) for function in current._functions()):
            yield current._inputs()[0]
        else:
            waiting += current._inputs()


def _reads_files(graph: "Any") -> bool:
    from operator import attrgetter

    functions = attrgetter("library.function")(graph)
    nodes = [node for function in functions for node in function.node_def]
    return any(_is_reader(node.op) for node in [*graph.node, *nodes])


def _is_reader(op: str) -> bool:
    kinds = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset", "ArrayRecordDataset")
    return op.startswith(kinds)


def _count_elements(files: "Any", most: int) -> int:
    """Return the number of elements, up to `most`; they are names of files, which are cheap."""
    count = int(files.cardinality())
    return count if count >= 0 else sum(1 for _ in files.take(most))


_REPORTED: "set[str]" = set()


def _report(name: str, text: str) -> None:
    if name not in _REPORTED:
        _REPORTED.add(name)
        print("fleet: " + text, file=sys.stderr, flush=True)


if __name__ == "fleet_adaptations":
    _FINDERS = {
        KERAS: AliasFinder(),
        SHARD: PatchFinder(
            ("tensorflow.python.distribute.input_util", "tensorflow.python.distribute.input_lib"), adapt_data
        ),
        TF_CONFIG: PatchFinder((_RESOLVERS,), adapt_resolver),
    }
    _NAMES = [item.partition(":")[0] for item in os.environ.get(VARIABLE, "").split(",")]
    sys.meta_path[:0] = [_FINDERS[name] for name in _NAMES if name in _FINDERS]  # type: ignore[misc]
