"""Rules on the strategy and the cluster (MW1xx), on versions (MW6xx), and on tasks of a job (MW7xx)."""

from __future__ import annotations

from collections.abc import Iterator

from train.agent.protocol.wording import join_names
from train.errors import KerasError
from train.lint.names import SINGLE_HOST, is_in, keras_name, kind_made_by, kind_of, shown
from train.lint.script import ERROR, HINT, WARNING, Script, Violation, rule, severity, violation
from train.lint.tracer import ENVIRON
from train.lint.values import MISSING, Call, Const, Items, Location, Mark, Value, inner, is_none, text
from train.script.arguments import assignments, is_foreign
from train.script.keras import BACKEND, FIRST_WITH_KERAS_3, VARIABLE, Requirement, choose

_LEARNS = ("fit", "fit_generator", "train_on_batch", "apply_gradients", "minimize")
_PACKAGES = ("jax", "keras", "numpy", "tensorflow", "tf_keras", "torch")
_TRUE = ("1", "true", "True")


def starts_runtime(script: Script, call: Call) -> bool:
    """Return whether a call starts TensorFlow's runtime; each was tested with Keras 2 and Keras 3."""
    kind = kind_made_by(call.name)
    if call.replica or (call.receiver is not MISSING and kind != "dataset"):
        return call.method == "__call__" and not call.replica and kind_of(call.receiver) in ("layer", "model")
    if kind == "model":  # only this one has variables immediately
        return script.need.legacy and keras_name(call.name) in ("Sequential", "models.Sequential")
    is_single = kind == "strategy" and call.method in SINGLE_HOST
    return is_single or kind in ("optimizer", "metric", "dataset") or is_in("operation", call.name)


@rule("MW101")
def _too_late(script: Script) -> Iterator[Violation]:
    for made in script.multi:
        configs = [value for call, value in _tf_configs(script) if call.order < made.order and call.sure]
        if configs and configs[-1] is None:
            continue  # without TF_CONFIG TensorFlow warns and uses this computer only
        before = (call for call in script.calls() if call.order < made.order and not call.excludes(made))
        first = next((call for call in before if starts_runtime(script, call)), None)
        if first is not None:
            yield violation(made, "", severity(first, ERROR), near=first, first=shown(first.name))


@rule("MW102")
def _single_host(script: Script) -> Iterator[Violation]:
    if script.workers < 2 or script.multi or script.parameter_server or not script.trace.complete:
        return
    strategies = script.strategies(*SINGLE_HOST)
    learning = [call for call in script.calls(*_LEARNS) if kind_of(call.receiver) in ("model", "optimizer")]
    if learning and script.need.tensorflow and not _may_connect(script):
        backends = [text(item.value) for item in script.settings() if item.name == BACKEND]
        is_jax = bool(backends) and backends[-1] in ("jax", "torch")
        first, variant = [*strategies, *learning][0], "one_computer" if strategies else "jax" if is_jax else "none"
        yield violation(first.location, variant, method=first.method, workers=script.workers)


def _may_connect(script: Script) -> bool:
    """Return whether something that is not followed may connect the workers."""
    launched = any(is_in("other_launcher", call.args[0].name) for call in script.calls("import"))
    joins = script.calls("TPUStrategy", "experimental_set_strategy", "set_distribution")
    scopes = any(
        kind_of(call.receiver) != "strategy" for call in script.calls("scope") if call.receiver is not MISSING
    )
    tests = [text(call.args[0]) for call in script.calls("__contains__")]
    return launched or any(joins) or scopes or "TF_CONFIG" in [*tests, *(name for _, name in script.reads())]


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
    result = next(((location, origin) for location, origin in writes if origin is not None), None)
    # It may also set variables with computed names, if it can read nothing of the job before.
    write = next((item.call for item in script.settings() if not item.name and item.value is not None), None)
    if result is not None or write is None:
        return result
    before = [call for call in script.calls() if call.order < write.order]
    copies = any(call.name in ("os.environ.copy", "os.environ.items") for call in before)
    passed = any(value.name == ENVIRON for call in before for value in call.args)
    names = [name for _, name in script.reads(write)]
    is_known = copies or passed or "" in names or any(map(_is_of_the_job, names))
    return None if is_known else (write.location, [name for name in dict.fromkeys(names) if is_foreign(name)])


def _is_of_the_job(variable: str) -> bool:
    return variable == "TF_CONFIG" or variable.startswith("FLEET_")


def _origin(script: Script, call: Call, value: Value | None) -> list[str] | None:
    """Return the variables of another launcher from which a TF_CONFIG is computed; None: from the job's variables.

    A value from an unknown function may be computed from all variables that the script has read before.
    """
    if value is None or value.meaning == "tf_config":
        return None
    depends = value.marks & Mark.ROLE or any(guard.marks & Mark.ROLE for guard in call.guards)
    if not depends and not value.marks & (Mark.REPLICAS | Mark.UNKNOWN):
        return []
    names = [name for _, name in script.reads(call)]
    foreign = [name for name in dict.fromkeys(names) if is_foreign(name)]
    return None if any(map(_is_of_the_job, names)) or (depends and not foreign) else foreign


def _early_tf_configs(script: Script) -> Iterator[tuple[Call, Value | None]]:
    """Yield the calls before the strategy that change TF_CONFIG although the job has set it."""
    for call, value in _tf_configs(script):
        late = bool(script.multi) and call.order > script.multi[0].order
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
        gpu = is_in("sets_gpus", call.name)
        if started is None:
            started = call if call.sure and (call in script.multi or starts_runtime(script, call)) else None
        elif (is_in("sets_threads", call.name) or (gpu and script.gpus != 0)) and not started.excludes(call):
            only = ", wherever there is a GPU" if gpu else ""
            level = WARNING if gpu and script.gpus is None else ERROR
            yield violation(call, "", level, near=started, started=shown(started.name), only=only)


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
        if is_none(resolver) or resolver.meaning == "resolver" or resolver.name.endswith("TFConfigClusterResolver"):
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
        yield violation(tests[0].location, "", HINT if script.chief is None else WARNING)


# --- versions -------------------------------------------------------------------------------------------------------


@rule("MW601")
def _keras_3(script: Script) -> Iterator[Violation]:
    need = script.need
    location = Location(need.file, need.line, 1)
    if script.tensorflow and script.versions is not None:
        tasks = {f"worker-{index}": script.versions for index in range(script.workers)}
        try:
            choose(need, tasks, {}, adapt=script.adapt)
        except KerasError as error:
            yield violation(location, "error", message=error.message, cause=error.cause, hint=error.hint)
    elif need.requirement is Requirement.KERAS_3_FIT and script.workers > 1:
        yield violation(location, "adapted" if script.adapt and not need.only_new else "fails", does=need.reason)


@rule("MW602")
def _variable(script: Script) -> Iterator[Violation]:
    # These imports make TensorFlow load Keras immediately.
    imports = (call for call in script.calls("import") if call.args[0].name.startswith("tensorflow.keras."))
    loaded = next(imports, None)
    fits = [call for call in script.of("model", "fit", "evaluate", "predict") if script.multi and script.workers > 1]
    modern = not script.tensorflow or script.tensorflow >= FIRST_WITH_KERAS_3
    for item in (item for item in script.settings() if item.name == VARIABLE):
        value = text(item.value)
        if value in _TRUE and loaded is not None and loaded.order < item.call.order:
            yield violation(item.call, "late", near=loaded)
        elif value is not None and value not in _TRUE and fits and modern:
            level = ERROR if script.tensorflow else WARNING
            yield violation(item.call, "keras_3", level, value=value, method=fits[0].method)


@rule("MW603")
def _estimators(script: Script) -> Iterator[Violation]:
    used = [call for call in script.calls() if is_in("estimator", call.name) and call.receiver is MISSING]
    # For older versions, and if there are other names of TensorFlow 1, MW604 gives better advice.
    if not script.tf1 and (not script.tensorflow or script.tensorflow >= FIRST_WITH_KERAS_3):
        yield from (violation(call, "", ERROR if script.tensorflow else WARNING) for call in used[:1])


@rule("MW604")
def _tensorflow_1(script: Script) -> Iterator[Violation]:
    for location, name in script.tf1[:1] if not script.tensorflow or script.tensorflow >= (2,) else ():
        more = f", and {len(script.tf1) - 1} more" if len(script.tf1) > 1 else ""
        yield violation(location, "", ERROR if script.tensorflow else WARNING, name=name, more=more)


# --- a task has no terminal, no notebook, and an environment of its own ---------------------------------------------


@rule("MW701")
def _reads_terminal(script: Script) -> Iterator[Violation]:
    for call in script.calls():
        if is_in("stdin", call.name) or (is_in("prompt", call.name) and not _catches(call, "EOFError")):
            yield violation(call, "stdin" if is_in("stdin", call.name) else "prompt", name=shown(call.name))


def _catches(call: Call, exception: str) -> bool:
    return any({exception, "*"} & set(guard.caught) for guard in call.guards)


@rule("MW702")
def _notebook(script: Script) -> Iterator[Violation]:
    events = list(script.calls("get_ipython"))
    outputs = [call.receiver.call for call in script.calls("getoutput")]
    for call in events if not any(_catches(event, "NameError") for event in events) else ():
        if call.name == "builtins.get_ipython":
            yield violation(call, "output" if call in outputs else "command")


@rule("MW703")
def _spawn(script: Script) -> Iterator[Violation]:
    for call in script.calls("Process", "Pool"):
        context = call.receiver.call
        starts = [context] if context is not None else list(script.calls("set_start_method"))
        method = text(starts[-1].argument("method", 0)) if starts else None
        is_main = any(guard.kind == "main" for guard in call.guards)
        if call.name.startswith("multiprocessing.") and not is_main and method in ("spawn", "forkserver"):
            yield violation(call)


@rule("MW704")
def _proxy(script: Script) -> Iterator[Violation]:
    first = min((call.order for call in [*script.multi, *script.parameter_server]), default=0)
    for item in script.settings() if script.workers > 1 else ():
        replaces = item.value is None or (isinstance(item.value, Const) and item.value.value != "*")
        if item.name.lower() == "no_proxy" and replaces and not item.default and item.call.order < first:
            yield violation(item.call, name=item.name)


@rule("MW705")
def _hidden_package(script: Script) -> Iterator[Violation]:
    for file in script.files:
        name, _, rest = file.removesuffix(".py").partition("/")
        if name in _PACKAGES and rest in ("", "__init__"):
            yield violation(Location(file, 1, 1), name=name)


@rule("MW706")
def _idle(script: Script) -> Iterator[Violation]:
    if script.idle is not None and not script.trainings:
        yield violation(script.idle)
