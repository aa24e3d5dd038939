"""Rules on the strategy and the cluster (MW1xx)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from train.lint.interpreter.names import ONE_HOST, Kind, keras_part, kind_of, kind_of_type
from train.lint.interpreter.trace import apart
from train.lint.interpreter.values import Call, Items, Made, Mark, Ref, Table, Value, text
from train.lint.model import Severity
from train.lint.subject import TRAINING, Subject, Violation, inner, severity, shown

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
        return subject.need.legacy and keras_part(call.name) in ("Sequential", "models.Sequential")
    if kind in (Kind.OPTIMIZER, Kind.METRIC):
        return call.method[:1].isupper()
    if kind is Kind.STRATEGY:
        return call.method in ONE_HOST
    return kind is Kind.DATASET


def _too_late(subject: Subject) -> Iterator[Violation]:
    """Check for MW101."""
    for made in subject.multi:
        before = (call for call in subject.trace.calls if call.order < made.order and not apart(call, made))
        first = next((call for call in before if starts_runtime(subject, call) and _certain(call)), None)
        if first is not None:
            where = first.place.seen_from(made.place)
            level = severity(made, severity(first, Severity.ERROR))
            yield Violation(
                made.place,
                level,
                f"{made.method} is created after {shown(first.name)} ({where}) has started TensorFlow's runtime",
                "it fails: RuntimeError: Collective ops must be configured at program startup",
                f"create the strategy before any other use of TensorFlow, before {where}",
            )


def _certain(call: Call) -> bool:
    return all(guard.kind != "called" for guard in call.guards)


def _on_one_host(subject: Subject) -> Iterator[Violation]:
    """Check for MW102."""
    if subject.workers < 2 or subject.multi or subject.parameter_server or not subject.trace.complete:
        return
    if "TF_CONFIG" in subject.trace.reads or not subject.need.tensorflow or _others(subject):
        return
    strategies = [call for call in subject.calls(*ONE_HOST) if kind_of_type(call.name) is Kind.STRATEGY]
    learning = [
        call
        for call in subject.calls(*TRAINING, "apply_gradients", "minimize")
        if kind_of(call.receiver) in (Kind.MODEL, Kind.OPTIMIZER) and _certain(call)
    ]
    first = next(iter([*strategies, *learning]), None)
    if first is None or not learning:
        return
    does = (
        f"{first.method} distributes work on one computer only"
        if strategies
        else f"the script trains with {first.method} and has no strategy for several workers"
    )
    yield Violation(
        first.place,
        Severity.WARNING,
        does,
        f"each of the {subject.workers} workers trains a separate model on all data",
        "begin with strategy = tf.distribute.MultiWorkerMirroredStrategy(), and create the model in its scope",
    )


def _others(subject: Subject) -> bool:
    """Return whether an unknown call may connect the workers."""
    imported = {item.name.partition(".")[0] for item in subject.trace.imports}
    if imported & set(_OTHER_LAUNCHERS):
        return True
    if any(call.method in _JOINED_BY for call in subject.calls()):
        return True
    return any(
        call.method == "scope" and call.receiver is not None and kind_of(call.receiver) is not Kind.STRATEGY
        for call in subject.calls("scope")
    )


def _writes_tf_config(subject: Subject) -> Iterator[Violation]:
    """Check for MW103."""
    first = min((call.order for call in subject.multi), default=None)
    for call in subject.trace.calls:
        value = _given_tf_config(call)
        late = first is not None and call.order > first
        if value is None or late or any(guard.meaning == "no_tf_config" for guard in call.guards):
            continue
        if isinstance(value, Ref):
            yield Violation(
                call.place,
                severity(call, Severity.ERROR),
                "the script removes TF_CONFIG",
                "the workers do not find each other: each trains a separate model",
                "do not change TF_CONFIG; `fleet` sets it for each task",
            )
            continue
        if getattr(value, "meaning", "") == "tf_config":  # a modified copy of the given value
            continue
        dynamic = value.marks & ~(Mark.GIVEN | Mark.REPLICAS)
        yield Violation(
            call.place,
            severity(call, Severity.WARNING if dynamic else Severity.ERROR),
            "the script sets TF_CONFIG itself",
            "its addresses, ports, and index are not those of this job: TensorFlow silently waits for a missing "
            "worker for up to an hour",
            'leave it to `fleet`, or write it only where there is none: if "TF_CONFIG" not in os.environ',
        )


def _given_tf_config(call: Call) -> Value | None:
    """Return the value that a call sets TF_CONFIG to; a Ref: it removes it; None: neither."""
    if call.name in ("os.environ.__setitem__", "os.putenv") and len(call.args) == 2 and _is_tf_config(call.args[0]):
        return call.args[1]
    if call.name == "os.environ.update":
        if "TF_CONFIG" in call.keywords:
            return call.keywords["TF_CONFIG"]
        return next((item.items.get("TF_CONFIG") for item in call.args if isinstance(item, Table)), None)
    if call.name in ("os.environ.pop", "os.unsetenv") and call.args and _is_tf_config(call.args[0]):
        return Ref(name=call.name)
    return None


def _is_tf_config(value: Value) -> bool:
    return text(value) == "TF_CONFIG"


def _writes_cluster(subject: Subject) -> Iterator[Violation]:
    """Check for MW104."""
    if subject.workers < 2:
        return
    for call in subject.calls("ClusterSpec"):
        table = call.argument("cluster", 0)
        if not call.name.startswith("tensorflow.train.") or not isinstance(table, Table):
            continue
        lists = [item for item in table.items.values() if isinstance(item, Items)]
        if lists and any(item.items and all(text(entry) is not None for entry in item.items) for item in lists):
            yield Violation(
                call.place,
                severity(call, Severity.ERROR),
                "the script contains the addresses of the cluster",
                "the job's hosts have other addresses, and each attempt has other ports",
                "use tf.distribute.cluster_resolver.TFConfigClusterResolver(), which reads TF_CONFIG",
            )


def _slurm(subject: Subject) -> Iterator[Violation]:
    """Check for MW109."""
    for call in subject.calls("SlurmClusterResolver"):
        if call.name.startswith("tensorflow.distribute.") and not any(
            guard.marks & Mark.GIVEN or guard.kind == "try" for guard in call.guards
        ):
            yield Violation(
                call.place,
                severity(call, Severity.WARNING),
                "SlurmClusterResolver takes the cluster from the variables of srun",
                "without srun it fails with RuntimeError (... not found in environment), and it uses other ports "
                "than those that fleet checked",
                "remove cluster_resolver: the strategy then reads the cluster from TF_CONFIG, also under Slurm",
            )


def _nccl(subject: Subject) -> Iterator[Violation]:
    """Check for MW105."""
    if subject.gpus != 0:
        return
    for call in subject.trace.calls:
        if call.method not in ("CommunicationOptions", "MultiWorkerMirroredStrategy", "Hints"):
            continue
        given = [value for item in call.everything() for value in inner(item)]
        if any(isinstance(value, Ref) and value.name.endswith(".NCCL") for value in given):
            yield Violation(
                call.place,
                Severity.HINT,
                "the script requests NCCL, and the workers have no GPUs",
                "TensorFlow prints a warning and does not use it",
                "remove the implementation, or use CommunicationImplementation.AUTO",
            )


def _late_settings(subject: Subject) -> Iterator[Violation]:
    """Check for MW106."""
    started: Call | None = None
    for call in subject.trace.calls:
        gpu = _GPU_SETTINGS.match(call.name)
        if started is not None and (gpu or _THREAD_SETTINGS.match(call.name)) and not apart(started, call):
            if gpu and subject.gpus == 0:
                continue
            level = Severity.WARNING if gpu and subject.gpus is None else Severity.ERROR
            yield Violation(
                call.place,
                severity(call, level),
                f"{call.method} comes after {shown(started.name)} ({started.place.seen_from(call.place)}), "
                "which starts TensorFlow's runtime",
                "devices and threads cannot be changed afterwards: it fails with a RuntimeError"
                + (", wherever there is a GPU" if gpu else ""),
                f"do it before {started.place.seen_from(call.place)}",
            )
        elif started is None and (starts_runtime(subject, call) or call in subject.multi) and call.sure:
            started = call


def _no_servers(subject: Subject) -> Iterator[Violation]:
    """Check for MW107."""
    if not subject.trace.complete or any(call.name.endswith(".Server") for call in subject.trace.calls):
        return
    for call in subject.parameter_server:
        yield Violation(
            call.place,
            severity(call, Severity.ERROR),
            f"every task creates {call.method}, and none is a server",
            "workers and parameter servers only serve the chief: the chief waits for them forever",
            'if resolver.task_type in ("worker", "ps"): tf.distribute.Server(resolver.cluster_spec(), '
            'job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc").join()',
        )


def _no_chief(subject: Subject) -> Iterator[Violation]:
    """Check for MW108."""
    if subject.servers or subject.multi:
        return
    sets_cluster = any(_given_tf_config(call) is not None for call in subject.trace.calls)
    for call in subject.parameter_server:
        if not _of_tf_config(call.argument("cluster_resolver", 0)):
            continue
        level = severity(call, Severity.WARNING if sets_cluster or not subject.trace.complete else Severity.ERROR)
        yield Violation(
            call.place,
            Severity.HINT if subject.servers is None else level,
            f"{call.method} requires a chief and parameter servers",
            "in a job that has only workers, every task waits for a chief forever",
            "use fleet train --chief --ps N: the first task is the chief, the last N are parameter servers",
        )


def _of_tf_config(resolver: Value | None) -> bool:
    """Return whether a strategy takes the cluster from TF_CONFIG."""
    if resolver is None or getattr(resolver, "meaning", "") == "resolver":
        return True
    return isinstance(resolver, Made) and resolver.call.name.endswith("TFConfigClusterResolver")


RULES: dict[str, Callable[[Subject], Iterator[Violation]]] = {
    "MW101": _too_late,
    "MW102": _on_one_host,
    "MW103": _writes_tf_config,
    "MW104": _writes_cluster,
    "MW105": _nccl,
    "MW106": _late_settings,
    "MW107": _no_servers,
    "MW108": _no_chief,
    "MW109": _slurm,
}
