"""Adaptations of a task's interpreter, so that scripts for older TensorFlow versions run on several workers.

The hook (train.agent.host.startup) executes `SOURCE` before the script if `VARIABLE` names an adaptation:

- ``keras``: ``import keras`` imports tf-keras, whose fit works with several workers; Keras 3's does not
  (https://github.com/keras-team/keras/issues/20585).
- ``shard``: a data set with AutoShardPolicy.AUTO and fewer files than workers is sharded by elements. TensorFlow
  would fail: "Could not apply FILE based sharding"
  (https://www.tensorflow.org/api_docs/python/tf/data/experimental/AutoShardPolicy).
"""

VARIABLE = "FLEET_ADAPT"
KERAS = "keras"
SHARD = "shard"

# For every Python from 3.8 on. Modules are imported when the script imports them, never earlier.
SOURCE = '''\
import importlib
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder


class AliasFinder:
    """Finds ``keras`` and its submodules as those of ``tf_keras``."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "keras":
            return None
        return ModuleSpec(name, AliasLoader("tf_" + name))


class AliasLoader:
    def __init__(self, real):
        self.real = real
        self.spec = None

    def create_module(self, spec):
        module = importlib.import_module(self.real)
        self.spec = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = self.spec  # the import system has put the spec of the alias there


class PatchFinder:
    """Wraps `get_distributed_dataset` of the module that all strategies call it from."""

    MODULES = ("tensorflow.python.distribute.input_util", "tensorflow.python.distribute.input_lib")

    def find_spec(self, name, path=None, target=None):
        if name not in self.MODULES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = PatchLoader(spec.loader)
        return spec


class PatchLoader:
    def __init__(self, loader):
        self.loader = loader

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        original = getattr(module, "get_distributed_dataset", None)
        if original is not None:
            module.get_distributed_dataset = by_elements(original)


def by_elements(original):
    import functools
    import inspect

    signature = inspect.signature(original)

    @functools.wraps(original)
    def get_distributed_dataset(*args, **kwargs):
        given = signature.bind(*args, **kwargs)
        try:
            adapt(given.arguments)
        except Exception:  # TensorFlow's internals have changed: it does what it does without us
            pass
        return original(*given.args, **given.kwargs)

    return get_distributed_dataset


def adapt(arguments):
    from tensorflow.python.data.ops.options import AutoShardPolicy, Options

    dataset = arguments["dataset"]
    context = arguments.get("input_context")
    workers = context.num_input_pipelines if context else len(arguments["input_workers"].worker_devices)
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if workers < 2 or policy != AutoShardPolicy.AUTO:
        return
    counts = [count_elements(files, workers) for files in file_lists(dataset)]
    fewest = min(counts, default=workers)
    if fewest >= workers:
        return
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA
    arguments["dataset"] = dataset.with_options(options)
    if context is None or context.input_pipeline_id == 0:
        report(fewest, workers)


def file_lists(dataset):
    """The data sets whose elements TensorFlow takes for files: those that a function with a reader is mapped over."""
    waiting, seen = [dataset], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        one = getattr(one, "_impl", one)
        if any(reads_files(function.function.graph.as_graph_def()) for function in one._functions()):
            yield one._inputs()[0]
        else:
            waiting += one._inputs()


def reads_files(graph):
    functions = graph.library.function
    nodes = [node for function in functions for node in function.node_def]
    return any(is_reader(node.op) for node in [*graph.node, *nodes])


def is_reader(op):
    kinds = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset", "ArrayRecordDataset")
    return op.startswith(kinds)


def count_elements(files, most):
    """Number of elements, up to `most`; they are names of files, which are cheap."""
    known = int(files.cardinality())
    return known if known >= 0 else sum(1 for _ in files.take(most))


REPORTED = []


def report(files, workers):
    if not REPORTED:
        REPORTED.append(True)
        number = "1 file" if files == 1 else "%d files" % files
        text = (
            "fleet: the data set has %s for %d workers: sharing it out by elements (AutoShardPolicy.DATA) "
            "instead of by files; `--no-adapt` turns this off" % (number, workers)
        )
        print(text, file=sys.stderr, flush=True)


ADAPTATIONS = {"keras": AliasFinder, "shard": PatchFinder}
sys.meta_path[:0] = [
    ADAPTATIONS[name]() for name in os.environ.get("FLEET_ADAPT", "").split(",") if name in ADAPTATIONS
]
'''
