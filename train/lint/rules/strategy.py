"""Rules on the strategy and the cluster (MW1xx)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from train.agent.protocol.wording import join_names
from train.lint.interpreter.api_names import SINGLE_HOST, Kind, keras_name, kind_of, kind_of_type
from train.lint.interpreter.evaluate import ENVIRON
from train.lint.interpreter.trace import apart
from train.lint.interpreter.values import Call, Items, Location, Made, Mark, Ref, Value, text
from train.lint.rule import ERROR, HINT, WARNING, Violation, rule, severity
from train.lint.subject import TRAINING, Subject, inner, shown
from train.script.keras import BACKEND
from train.script.launchers import assignments, is_foreign

_OPERATIONS = re.compile(
    r"^tensorflow\.(?:(?:random|math|nn|linalg|strings|image|signal|audio|sparse|ragged|bitwise)\.[a-z]\w*"
    r"|io\.(?:read_file|parse_\w+|decode_\w+)"
    r"|(?:constant|range|cast|zeros|ones|fill|reshape|convert_to_tensor|one_hot|concat|stack|squeeze|expand_dims|eye"
    r"|matmul|add|multiply|subtract|divide|square|sqrt|reduce_\w+|argmax|argmin|transpose|tile|where|equal|linspace"
    r"|zeros_like|ones_like|identity|gather|split|pad|Variable|lookup\.\w+Table|summary\.create_file_writer"
    r"|config\.(?:experimental\.)?list_logical_devices))$"
)
_NO_OPERATIONS = ("tensorflow.random.set_seed", "tensorflow.random.experimental.set_seed")
_GPU_SETTINGS = re.compile(
    r"^tensorflow\.config\.(?:experimental\.)?"
    r"(?:set_memory_growth|set_visible_devices|set_logical_device_configuration|set_virtual_device_configuration)$"
)
_THREAD_SETTINGS = re.compile(r"^tensorflow\.config\.threading\.set_\w+$")
_JOINED_BY = ("TPUStrategy", "experimental_set_strategy", "set_distribution")
_JAX_FIX = (
    'use the backend jax, begin with keras.distribution.initialize(os.environ["FLEET_ADDRESSES"], '
    'int(os.environ["FLEET_NUM_TASKS"]), int(os.environ["FLEET_RANK"])), and set a '
    "keras.distribution.DataParallel(auto_shard_dataset=False)"
)
_SETS = "the script sets TF_CONFIG itself"
_OTHER_LAUNCHERS = ("horovod", "byteps", "ray", "torch", "jax", "tf_yarn", "mesh_tensorflow", "deepspeed")


def starts_runtime(subject: Subject, call: Call) -> bool:
    """Return whether a call starts TensorFlow's runtime; each was tested with Keras 2 and Keras 3."""
    if call.name in _NO_OPERATIONS or call.replica:
        return False
    if call.receiver is not None:
        return kind_of(Made(call=call)) is Kind.DATASET or (
            call.method == "__call__" and kind_of(call.receiver) in (Kind.LAYER, Kind.MODEL)
        )
    return _OPERATIONS.match(call.name) is not None or _has_state(subject, call)


def _has_state(subject: Subject, call: Call) -> bool:
    """Return whether the result of a call has variables or operations immediately."""
    made = Made(call=call)
    kind = kind_of(made)
    if kind is Kind.MODEL:
        return subject.need.legacy and keras_name(call.name) in ("Sequential", "models.Sequential")
    if kind in (Kind.OPTIMIZER, Kind.METRIC):
        return call.method[:1].isupper()
    if kind is Kind.STRATEGY:
        return call.method in SINGLE_HOST
    return kind is Kind.DATASET


@rule("MW101", ERROR, reason="it fails: RuntimeError: Collective ops must be configured at program startup")
def _too_late(subject: Subject) -> Iterator[Violation]:
    for made in subject.multi:
        configs = [value for call, value in _tf_configs(subject) if call.order < made.order and call.sure]
        if configs and configs[-1] is None:
            continue  # without TF_CONFIG TensorFlow warns and uses this computer only
        before = (call for call in subject.trace.calls if call.order < made.order and not apart(call, made))
        first = next((call for call in before if starts_runtime(subject, call) and _certain(call)), None)
        if first is not None:
            where = first.location.seen_from(made.location)
            yield Violation(
                made,
                f"{made.method} is created after {shown(first.name)} ({where}) has started TensorFlow's runtime",
                severity(first, ERROR),
                fix=f"create the strategy before any other use of TensorFlow, before {where}",
            )


def _certain(call: Call) -> bool:
    return all(guard.kind != "called" for guard in call.guards)


@rule(
    "MW102",
    WARNING,
    fix="begin with strategy = tf.distribute.MultiWorkerMirroredStrategy(), and create the model in its scope",
)
def _single_host(subject: Subject) -> Iterator[Violation]:
    if subject.workers < 2 or subject.multi or subject.parameter_server or not subject.trace.complete:
        return
    if "TF_CONFIG" in subject.trace.reads or not subject.need.tensorflow or _others(subject):
        return
    strategies = [call for call in subject.calls(*SINGLE_HOST) if kind_of_type(call.name) is Kind.STRATEGY]
    learning = [
        call
        for call in subject.calls(*TRAINING, "apply_gradients", "minimize")
        if kind_of(call.receiver) in (Kind.MODEL, Kind.OPTIMIZER) and _certain(call)
    ]
    given = [text(item.value) for item in subject.settings() if item.name == BACKEND and item.value is not None]
    if learning:
        first = [*strategies, *learning][0]
        yield Violation(
            first.location,
            f"{first.method} distributes work on one computer only"
            if strategies
            else f"the script trains with {first.method} and has no strategy for several workers",
            reason=f"each of the {subject.workers} workers trains a separate model on all data",
            fix=_JAX_FIX if given and given[-1] in ("jax", "torch") else "",
        )


def _others(subject: Subject) -> bool:
    """Return whether an unknown call may connect the workers."""
    imported = {item.name.partition(".")[0] for item in subject.trace.imports}
    scopes = (call.receiver for call in subject.calls("scope") if call.receiver is not None)
    return (
        bool(imported & set(_OTHER_LAUNCHERS))
        or any(subject.calls(*_JOINED_BY))
        or any(kind_of(owner) is not Kind.STRATEGY for owner in scopes)
    )


@rule(
    "MW103",
    ERROR,
    reason="its addresses, ports, and index are not those of this job: TensorFlow silently waits for a missing "
    "worker for up to an hour",
    fix='leave it to `fleet`, or write it only where there is none: if "TF_CONFIG" not in os.environ',
)
def _writes_tf_config(subject: Subject) -> Iterator[Violation]:
    writes = list(_early_tf_configs(subject))
    for call, value in writes:
        origin = _origin(subject, call, value)
        if value is None and all(other is None for later, other in writes if later.order > call.order):
            reason = "the workers do not find each other: each trains a separate model"
            fix = "do not change TF_CONFIG; `fleet` sets it for each task"
            yield Violation(call, "the script removes TF_CONFIG", reason=reason, fix=fix)
        elif origin is not None and subject.adapt:
            unless = " or ".join(["--no-adapt is given", *(f"{name} is set" for name in origin[:2])])
            reason = f"`fleet` gives TensorFlow the TF_CONFIG of the job unless {unless}"
            yield Violation(call.location, _SETS, HINT, reason)
        elif origin is not None and value is not None:
            yield Violation(call, _SETS, WARNING if value.marks & ~(Mark.GIVEN | Mark.REPLICAS) else ERROR)


def foreign_tf_config(subject: Subject) -> tuple[Location, list[str]] | None:
    """Return where the script first sets TF_CONFIG to a value that is not computed from the job's; None: nowhere.

    The second part lists the variables of another launcher from which the value is computed if they are set.
    """
    writes = ((call.location, _origin(subject, call, value)) for call, value in _early_tf_configs(subject))
    return next(((location, origin) for location, origin in writes if origin is not None), _any_variable(subject))


def _any_variable(subject: Subject) -> tuple[Location, list[str]] | None:
    """Return where a script sets variables with computed names, if it can read nothing of the job before."""
    write = next((item.call for item in subject.settings() if not item.name and item.value is not None), None)
    if write is None:
        return None
    before = [call for call in subject.calls() if call.order < write.order]
    copies = any(call.name in ("os.environ.copy", "os.environ.items") for call in before)
    passed = any(isinstance(value, Ref) and value.name == ENVIRON for call in before for value in call.args)
    names = [name for read, name in subject.reads() if read.order < write.order]
    if copies or passed or any(name in ("", "TF_CONFIG") or name.startswith("FLEET_") for name in names):
        return None
    return write.location, [name for name in dict.fromkeys(names) if is_foreign(name)]


def _origin(subject: Subject, call: Call, value: Value | None) -> list[str] | None:
    """Return the variables of another launcher from which a TF_CONFIG is computed; None: from the job's variables.

    A value from an unknown function may be computed from all variables that the script has read before.
    """
    if value is None or getattr(value, "meaning", "") == "tf_config":
        return None
    names = [name for read, name in subject.reads() if read.order < call.order]
    depends = value.marks & Mark.ROLE or any(guard.marks & Mark.ROLE for guard in call.guards)
    if not depends and not value.marks & (Mark.REPLICAS | Mark.UNKNOWN):
        return []
    if any(name == "TF_CONFIG" or name.startswith("FLEET_") for name in names):
        return None
    foreign = [name for name in dict.fromkeys(names) if is_foreign(name)]
    return None if not foreign and depends else foreign


def _early_tf_configs(subject: Subject) -> Iterator[tuple[Call, Value | None]]:
    """Yield the calls before the strategy that change TF_CONFIG although the job has set it."""
    first = min((call.order for call in subject.multi), default=None)
    for call, value in _tf_configs(subject):
        late = first is not None and call.order > first
        if not late and not any(guard.meaning == "no_tf_config" for guard in call.guards):
            yield call, value


def _tf_configs(subject: Subject) -> Iterator[tuple[Call, Value | None]]:
    """Yield the calls that set TF_CONFIG, with its value; None: they remove it."""
    removed = False
    for item in subject.settings():
        if item.name == "TF_CONFIG" and (removed or not item.default):
            removed = removed or item.value is None
            yield item.call, item.value


@rule(
    "MW104",
    ERROR,
    reason="they are not those of this job, whose resolver is TFConfigClusterResolver()",
    fix="use tf.distribute.cluster_resolver.TFConfigClusterResolver(), which reads TF_CONFIG",
)
def _writes_cluster(subject: Subject) -> Iterator[Violation]:
    for call in subject.calls("ClusterSpec") if subject.workers > 1 else ():
        jobs = inner(call.argument("cluster", 0), 1) if call.name.startswith("tensorflow.train.") else ()
        lists = [item.items for item in jobs if isinstance(item, Items)]
        if any(items and all(text(entry) is not None for entry in items) for items in lists):
            yield Violation(call, "the script contains the addresses of the cluster")


@rule(
    "MW111",
    WARNING,
    reason="without --chief the job has none: worker 0 is the chief, and no task does it",
    fix="use fleet train --chief, or test also: task_type == 'worker' and task_id == 0",
)
def _only_type_chief(subject: Subject) -> Iterator[Violation]:
    tests = subject.trace.chief_tests if subject.together and not subject.chief else []
    if tests and not subject.trace.tests_index:
        level = HINT if subject.chief is None else WARNING
        yield Violation(tests[0], "only a task of type chief does something", level)


@rule(
    "MW109",
    WARNING,
    reason="without srun it fails with RuntimeError (... not found in environment); this job's resolver is "
    "TFConfigClusterResolver()",
    fix="use TFConfigClusterResolver(), which reads the TF_CONFIG that `fleet` sets, also under Slurm; do not set "
    "TF_CONFIG from the resolver",
)
def _slurm(subject: Subject) -> Iterator[Violation]:
    for call in subject.calls("SlurmClusterResolver"):
        if call.name.startswith("tensorflow.distribute.") and not _optional(call):
            yield Violation(call, "SlurmClusterResolver takes the cluster from the variables of srun")


@rule("MW110", WARNING)
def _launchers(subject: Subject) -> Iterator[Violation]:
    reads = [(call, name) for call, name in subject.reads() if is_foreign(name) and not _optional(call)]
    names = list(dict.fromkeys(name for _, name in reads))
    fails = any(call.name.endswith("__getitem__") for call, _ in reads)
    reason = "it fails with a KeyError under `fleet`" if fails else "all tasks take the same default"
    fix = "use FLEET_RANK, FLEET_NUM_TASKS, and FLEET_ADDRESSES"
    if assignments(names):
        fix += f"; or start it with fleet train -- bash -c '{assignments(names)} exec python {subject.files[0]}'"
    for call, _ in reads[:1]:
        message = f"the script reads {join_names(names)}, which mpirun, srun, or another launcher sets"
        yield Violation(call.location, message, reason=reason, fix=fix)


def _optional(call: Call) -> bool:
    """Return whether a call is under a condition that the job's variables or arguments decide, or may fail."""
    return any(guard.marks & Mark.GIVEN or guard.kind == "try" for guard in call.guards)


@rule(
    "MW105",
    HINT,
    reason="TensorFlow prints a warning and does not use it",
    fix="remove the implementation, or use CommunicationImplementation.AUTO",
)
def _nccl(subject: Subject) -> Iterator[Violation]:
    makers = ("CommunicationOptions", "MultiWorkerMirroredStrategy", "Hints")
    for call in subject.calls(*makers) if subject.gpus == 0 else ():
        given = [value for item in call.everything() for value in inner(item)]
        if any(isinstance(value, Ref) and value.name.endswith(".NCCL") for value in given):
            yield Violation(call, "the script requests NCCL, and the workers have no GPUs")


@rule("MW106", ERROR)
def _late_settings(subject: Subject) -> Iterator[Violation]:
    started: Call | None = None
    for call in subject.trace.calls:
        gpu = _GPU_SETTINGS.match(call.name)
        if started is not None and (gpu or _THREAD_SETTINGS.match(call.name)) and not apart(started, call):
            where = started.location.seen_from(call.location)
            if not (gpu and subject.gpus == 0):
                yield Violation(
                    call,
                    f"{call.method} comes after {shown(started.name)} ({where}), which starts TensorFlow's runtime",
                    WARNING if gpu and subject.gpus is None else ERROR,
                    "devices and threads cannot be changed afterwards: it fails with a RuntimeError"
                    + (", wherever there is a GPU" if gpu else ""),
                    f"do it before {where}",
                )
        elif started is None and (starts_runtime(subject, call) or call in subject.multi) and call.sure:
            started = call


@rule(
    "MW107",
    ERROR,
    reason="workers and parameter servers only serve the chief: the chief waits for them forever",
    fix='if resolver.task_type in ("worker", "ps"): tf.distribute.Server(resolver.cluster_spec(), '
    'job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc").join()',
)
def _no_servers(subject: Subject) -> Iterator[Violation]:
    has_server = any(call.name.endswith(".Server") for call in subject.trace.calls)
    for call in subject.parameter_server if subject.trace.complete and not has_server else ():
        yield Violation(call, f"every task creates {call.method}, and none is a server")


@rule(
    "MW108",
    ERROR,
    reason="in a job that has only workers, every task waits for a chief forever",
    fix="use fleet train --chief --ps N: the first task is the chief, the last N are parameter servers",
)
def _no_chief(subject: Subject) -> Iterator[Violation]:
    unsure = any(_tf_configs(subject)) or not subject.trace.complete
    level = HINT if subject.servers is None else WARNING if unsure else ERROR
    for call in subject.parameter_server if not subject.servers and not subject.multi else ():
        if _of_tf_config(call.argument("cluster_resolver", 0)):
            yield Violation(call, f"{call.method} requires a chief and parameter servers", level)


def _of_tf_config(resolver: Value | None) -> bool:
    """Return whether a strategy takes the cluster from TF_CONFIG."""
    if resolver is None or getattr(resolver, "meaning", "") == "resolver":
        return True
    return isinstance(resolver, Made) and resolver.call.name.endswith("TFConfigClusterResolver")
