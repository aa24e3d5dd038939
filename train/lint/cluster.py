"""Rules on the strategy and the cluster (MW1xx)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from train.agent.protocol.wording import join_names
from train.lint.evaluator import ENVIRON
from train.lint.names import (
    DATASET,
    LAYER,
    METRIC,
    MODEL,
    OPTIMIZER,
    SINGLE_HOST,
    STRATEGY,
    keras_name,
    kind_made_by,
    kind_of,
    shown,
)
from train.lint.script import ERROR, HINT, WARNING, Script, Violation, rule, severity, violation
from train.lint.values import Call, Items, Location, Mark, Value, inner, text
from train.script.keras import BACKEND
from train.script.launchers import assignments, is_foreign

_OPERATIONS = re.compile(
    r"^tensorflow\.(?:(?:random|math|nn|linalg|strings|image|signal|audio|sparse|ragged|bitwise)\.(?!set_seed|experimental)[a-z]\w*"
    r"|io\.(?:read_file|parse_\w+|decode_\w+)"
    r"|(?:constant|range|cast|zeros|ones|fill|reshape|convert_to_tensor|one_hot|concat|stack|squeeze|expand_dims|eye"
    r"|matmul|add|multiply|subtract|divide|square|sqrt|reduce_\w+|argmax|argmin|transpose|tile|where|equal|linspace"
    r"|zeros_like|ones_like|identity|gather|split|pad|Variable|lookup\.\w+Table|summary\.create_file_writer"
    r"|config\.(?:experimental\.)?list_logical_devices))$"
)
_GPU_SETTINGS = re.compile(
    r"^tensorflow\.config\.(?:experimental\.)?"
    r"set_(?:memory_growth|visible_devices|(?:logical|virtual)_device_configuration)$"
)
_THREAD_SETTINGS = re.compile(r"^tensorflow\.config\.threading\.set_\w+$")
_OTHER_LAUNCHERS = {"horovod", "byteps", "ray", "torch", "jax", "tf_yarn", "mesh_tensorflow", "deepspeed"}


def starts_runtime(script: Script, call: Call) -> bool:
    """Return whether a call starts TensorFlow's runtime; each was tested with Keras 2 and Keras 3."""
    kind = kind_made_by(call.name)
    if call.replica or (call.receiver is not None and kind != DATASET):
        return call.method == "__call__" and not call.replica and kind_of(call.receiver) in (LAYER, MODEL)
    if kind == MODEL:  # only this one has variables immediately
        return script.need.legacy and keras_name(call.name) in ("Sequential", "models.Sequential")
    is_single = kind == STRATEGY and call.method in SINGLE_HOST
    return is_single or kind in (OPTIMIZER, METRIC, DATASET) or _OPERATIONS.match(call.name) is not None


@rule("MW101")
def _too_late(script: Script) -> Iterator[Violation]:
    for made in script.multi:
        configs = [value for call, value in _tf_configs(script) if call.order < made.order and call.sure]
        if configs and configs[-1] is None:
            continue  # without TF_CONFIG TensorFlow warns and uses this computer only
        before = (call for call in script.calls() if call.order < made.order and not call.excludes(made))
        first = next((call for call in before if starts_runtime(script, call)), None)
        if first is not None:
            where = first.location.seen_from(made.location)
            yield violation(made, "", severity(first, ERROR), first=shown(first.name), where=where)


@rule("MW102")
def _single_host(script: Script) -> Iterator[Violation]:
    if script.workers < 2 or script.multi or script.parameter_server or not script.trace.complete:
        return
    if not script.need.tensorflow or _may_connect(script):
        return
    strategies = [call for call in script.calls(*SINGLE_HOST) if kind_made_by(call.name) == STRATEGY]
    methods = ("fit", "fit_generator", "train_on_batch", "apply_gradients", "minimize")
    learning = [call for call in script.calls(*methods) if kind_of(call.receiver) in (MODEL, OPTIMIZER)]
    backends = [text(item.value) for item in script.settings() if item.name == BACKEND]
    for first in [*strategies, *learning][:1] if learning else ():
        is_jax = bool(backends) and backends[-1] in ("jax", "torch")
        variant = "one_computer" if strategies else "jax" if is_jax else "none"
        yield violation(first.location, variant, method=first.method, workers=script.workers)


def _may_connect(script: Script) -> bool:
    """Return whether something that is not followed may connect the workers."""
    imported = {call.args[0].name.partition(".")[0] for call in script.calls("import")}
    joins = script.calls("TPUStrategy", "experimental_set_strategy", "set_distribution")
    others = any(kind_of(call.receiver) != STRATEGY for call in script.calls("scope") if call.receiver is not None)
    tests = (text(call.args[0]) for call in script.calls("__contains__"))
    names = {*tests, *(name for _, name in script.reads())}
    return bool(imported & _OTHER_LAUNCHERS) or any(joins) or others or "TF_CONFIG" in names


@rule("MW103")
def _writes_tf_config(script: Script) -> Iterator[Violation]:
    writes = list(_early_tf_configs(script))
    for call, value in writes:
        origin = _origin(script, call, value)
        if value is None and all(other is None for later, other in writes if later.order > call.order):
            yield violation(call, "removed")
        elif origin is not None and script.adapt:
            unless = " or ".join(["--no-adapt is given", *(f"{name} is set" for name in origin[:2])])
            yield violation(call.location, "adapted", unless=unless)
        elif origin is not None and value is not None:
            yield violation(call, "set", WARNING if value.marks & ~(Mark.GIVEN | Mark.REPLICAS) else ERROR)


def foreign_tf_config(script: Script) -> tuple[Location, list[str]] | None:
    """Return where a script first sets TF_CONFIG to a value that is not computed from the job's; None: nowhere.

    The second part lists the variables of another launcher from which the value is computed if they are set.
    """
    writes = ((call.location, _origin(script, call, value)) for call, value in _early_tf_configs(script))
    return next(((location, origin) for location, origin in writes if origin is not None), _any_variable(script))


def _any_variable(script: Script) -> tuple[Location, list[str]] | None:
    """Return where a script sets variables with computed names, if it can read nothing of the job before."""
    write = next((item.call for item in script.settings() if not item.name and item.value is not None), None)
    if write is None:
        return None
    before = [call for call in script.calls() if call.order < write.order]
    copies = any(call.name in ("os.environ.copy", "os.environ.items") for call in before)
    passed = any(value.name == ENVIRON for call in before for value in call.args)
    names = [name for read, name in script.reads() if read.order < write.order]
    if copies or passed or any(name in ("", "TF_CONFIG") or name.startswith("FLEET_") for name in names):
        return None
    return write.location, [name for name in dict.fromkeys(names) if is_foreign(name)]


def _origin(script: Script, call: Call, value: Value | None) -> list[str] | None:
    """Return the variables of another launcher from which a TF_CONFIG is computed; None: from the job's variables.

    A value from an unknown function may be computed from all variables that the script has read before.
    """
    if value is None or value.meaning == "tf_config":
        return None
    names = [name for read, name in script.reads() if read.order < call.order]
    depends = value.marks & Mark.ROLE or any(guard.marks & Mark.ROLE for guard in call.guards)
    if not depends and not value.marks & (Mark.REPLICAS | Mark.UNKNOWN):
        return []
    if any(name == "TF_CONFIG" or name.startswith("FLEET_") for name in names):
        return None
    foreign = [name for name in dict.fromkeys(names) if is_foreign(name)]
    return None if not foreign and depends else foreign


def _early_tf_configs(script: Script) -> Iterator[tuple[Call, Value | None]]:
    """Yield the calls before the strategy that change TF_CONFIG although the job has set it."""
    first = min((call.order for call in script.multi), default=None)
    for call, value in _tf_configs(script):
        late = first is not None and call.order > first
        if not late and not any(guard.meaning == "no_tf_config" for guard in call.guards):
            yield call, value


def _tf_configs(script: Script) -> Iterator[tuple[Call, Value | None]]:
    """Yield the calls that set TF_CONFIG, with its value; None: they remove it."""
    removed = False
    for item in script.settings():
        if item.name == "TF_CONFIG" and (removed or not item.default):
            removed = removed or item.value is None
            yield item.call, item.value


@rule("MW104")
def _writes_cluster(script: Script) -> Iterator[Violation]:
    for call in script.calls("ClusterSpec") if script.workers > 1 else ():
        jobs = inner(call.argument("cluster", 0), 1) if call.name.startswith("tensorflow.train.") else ()
        lists = [item.items.values() for item in jobs if isinstance(item, Items)]
        if any(items and all(text(entry) is not None for entry in items) for items in lists):
            yield violation(call)


@rule("MW105")
def _nccl(script: Script) -> Iterator[Violation]:
    makers = ("CommunicationOptions", "MultiWorkerMirroredStrategy", "Hints")
    for call in script.calls(*makers) if script.gpus == 0 else ():
        if any(value.name.endswith(".NCCL") for value in call.everything()):
            yield violation(call)


@rule("MW106")
def _late_settings(script: Script) -> Iterator[Violation]:
    started: Call | None = None
    for call in script.calls():
        gpu = _GPU_SETTINGS.match(call.name)
        if started is not None and (gpu or _THREAD_SETTINGS.match(call.name)) and not started.excludes(call):
            where = started.location.seen_from(call.location)
            only = ", wherever there is a GPU" if gpu else ""
            level = WARNING if gpu and script.gpus is None else ERROR
            if not (gpu and script.gpus == 0):
                yield violation(call, "", level, started=shown(started.name), where=where, only=only)
        elif started is None and (starts_runtime(script, call) or call in script.multi) and call.sure:
            started = call


@rule("MW107")
def _no_servers(script: Script) -> Iterator[Violation]:
    for call in script.parameter_server if script.trace.complete and not any(script.calls("Server")) else ():
        yield violation(call)


@rule("MW108")
def _no_chief(script: Script) -> Iterator[Violation]:
    unsure = any(_tf_configs(script)) or not script.trace.complete
    level = HINT if script.servers is None else WARNING if unsure else ERROR
    for call in script.parameter_server if not script.servers and not script.multi else ():
        resolver = call.argument("cluster_resolver", 0)
        if resolver is None or resolver.meaning == "resolver" or resolver.name.endswith("TFConfigClusterResolver"):
            yield violation(call, "", level)


@rule("MW109")
def _slurm(script: Script) -> Iterator[Violation]:
    for call in script.calls("SlurmClusterResolver"):
        if call.name.startswith("tensorflow.distribute.") and not _optional(call):
            yield violation(call)


@rule("MW110")
def _launchers(script: Script) -> Iterator[Violation]:
    reads = [(call, name) for call, name in script.reads() if is_foreign(name) and not _optional(call)]
    names = list(dict.fromkeys(name for _, name in reads))
    fails = any(call.method == "__getitem__" for call, _ in reads)
    command = f"fleet train -- bash -c '{assignments(names)} exec python {script.files[0]}'"
    start = f"; or start it with {command}" if assignments(names) else ""
    for call, _ in reads[:1]:
        yield violation(call.location, "fails" if fails else "same", names=join_names(names), start=start)


def _optional(call: Call) -> bool:
    """Return whether a call is under a condition that the job's variables or arguments decide, or may fail."""
    return any(guard.marks & Mark.GIVEN or guard.kind == "try" for guard in call.guards)


@rule("MW111")
def _only_type_chief(script: Script) -> Iterator[Violation]:
    tests = list(script.calls("test")) if script.together and not script.chief else []
    if tests and all(call.args[0].meaning == "type" for call in tests):
        level = HINT if script.chief is None else WARNING
        yield violation(tests[0].location, "", level)
