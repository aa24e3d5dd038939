"""Adapt a task's interpreter, so that scripts for older TensorFlow versions run on several workers.

The hook (train.agent.injected.sitecustomize) installs them when the script first imports a large module. `VARIABLE`
names them:

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
import operator
import os
import sys
from importlib.machinery import ModuleSpec

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
_READER_MODULE = "tensorflow.python.data.ops.readers"
_INPUT_MODULES = ("tensorflow.python.distribute.input_util", "tensorflow.python.distribute.input_lib")
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


def adapt_data(module: "Any") -> None:
    """Wrap `get_distributed_dataset` of a module from which all strategies call it."""
    import contextlib
    import functools
    import inspect

    original = module.get_distributed_dataset
    signature = inspect.signature(original)

    @functools.wraps(original)
    def get_distributed_dataset(*args: "Any", **kwargs: "Any") -> "Any":
        given = signature.bind(*args, **kwargs)
        with contextlib.suppress(Exception):  # TensorFlow's internals have changed: it behaves as without fleet
            _adapt(given.arguments)
        return original(*given.args, **given.kwargs)

    module.get_distributed_dataset = get_distributed_dataset


def adapt_resolver(module: "Any") -> None:
    """Let the public class `TFConfigClusterResolver` read the job's TF_CONFIG."""
    import contextlib
    import functools

    cls: "Any" = module.TFConfigClusterResolver

    @functools.wraps(cls.__init__)
    def begin(*args: "Any", original: "Any" = cls.__init__, **kwargs: "Any") -> None:
        with contextlib.suppress(Exception):  # the strategy is created as without fleet
            restore_tf_config()
        original(*args, **kwargs)

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


def _adapt(arguments: "dict[str, Any]") -> None:
    from tensorflow.python.data.ops.options import AutoShardPolicy, Options

    dataset = arguments["dataset"]
    context = arguments.get("input_context")
    workers = context.num_input_pipelines if context else len(arguments["input_workers"].worker_devices)
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if workers < 2 or policy != AutoShardPolicy.AUTO:
        return
    fewest = min(_count_files(dataset), default=workers) if _READERS else workers
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


def note_readers(module: "Any") -> None:
    """Record when a data set that reads files is created; without one, no graph of a data set is needed."""
    import functools

    def note(cls: "Any") -> None:
        create = cls.__init__

        @functools.wraps(create)
        def init(*args: "Any", **kwargs: "Any") -> None:
            _READERS.add(cls.__name__)
            create(*args, **kwargs)

        cls.__init__ = init

    for name, value in list(vars(module).items()):
        if name.startswith(_READER_KINDS) and isinstance(value, type):
            note(value)


def _count_files(dataset: "Any") -> "Iterator[int]":
    """Yield the lengths of the lists from which a data set takes names of files, by its serialized graph.

    TensorFlow takes each element of a data set for a file if a function with a reader is mapped over it.
    """
    import tensorflow

    variant = tensorflow.data.experimental.to_variant(dataset)
    serialized = tensorflow.raw_ops.DatasetToGraphV2(input_dataset=variant)
    graph = tensorflow.compat.v1.GraphDef.FromString(serialized.numpy())
    functions = operator.attrgetter("library.function")(graph)
    bodies = {function.signature.name: function.node_def for function in functions}
    nodes = {node.name: node for node in graph.node}

    def reads(name: str) -> bool:
        return any(node.op.startswith(_READER_KINDS) or calls_reader(node) for node in bodies.get(name, ()))

    def calls_reader(node: "Any") -> bool:
        return any(reads(value.func.name) for value in node.attr.values() if value.func.name)

    for node in filter(calls_reader, graph.node):
        source = nodes[node.input[0]]
        while source.op != "TensorSliceDataset":
            source = nodes[source.input[0]]
        yield nodes[source.input[0]].attr["value"].tensor.tensor_shape.dim[0].size


_READER_KINDS = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset")
_READERS: "set[str]" = set()  # kinds of which a data set was created
_REPORTED: "set[str]" = set()


def _report(name: str, text: str) -> None:
    if name not in _REPORTED:
        _REPORTED.add(name)
        print("fleet: " + text, file=sys.stderr, flush=True)


def install() -> "dict[str, Callable[[Any], None]]":
    """Install the alias of Keras if it is named; return what adapts modules that were loaded, by their names."""
    names = [item.partition(":")[0] for item in os.environ.get(VARIABLE, "").split(",")]
    patches: "dict[str, Callable[[Any], None]]" = {}
    if KERAS in names:
        sys.meta_path.insert(0, AliasFinder())
    if SHARD in names:
        patches.update(dict.fromkeys(_INPUT_MODULES, adapt_data))
        patches[_READER_MODULE] = note_readers
    if TF_CONFIG in names:
        patches[_RESOLVERS] = adapt_resolver
    return patches
