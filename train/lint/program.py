"""Rules on versions of TensorFlow and Keras (MW6xx), and on operations that are not possible on a host (MW7xx)."""

from __future__ import annotations

from collections.abc import Iterator

from train.errors import KerasError
from train.lint.names import MODEL, shown
from train.lint.script import ERROR, WARNING, Script, Violation, rule, violation
from train.lint.values import Call, Const, Location, text
from train.script.keras import FIRST_WITH_KERAS_3, VARIABLE, Requirement, choose

_PACKAGES = ("jax", "keras", "numpy", "tensorflow", "tf_keras", "torch")
_PROMPTS = ("builtins.input", "builtins.breakpoint", "pdb.set_trace", "ipdb.set_trace", "getpass.getpass")
_STDIN = ("sys.stdin.read", "sys.stdin.readline", "sys.stdin.readlines", "sys.stdin.buffer.read", "fileinput.input")


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
    fits = [call for call in script.of(MODEL, "fit", "evaluate", "predict") if script.multi and script.workers > 1]
    modern = not script.tensorflow or script.tensorflow >= FIRST_WITH_KERAS_3
    for item in (item for item in script.settings() if item.name == VARIABLE):
        value = text(item.value)
        if value in ("1", "true", "True") and loaded is not None and loaded.order < item.call.order:
            yield violation(item.call, "late", where=loaded.location.seen_from(item.call.location))
        elif value not in (None, "1", "true", "True") and fits and modern:
            level = ERROR if script.tensorflow else WARNING
            yield violation(item.call, "keras_3", level, value=value, method=fits[0].method)


@rule("MW603")
def _estimators(script: Script) -> Iterator[Violation]:
    if script.tf1 or (script.tensorflow and script.tensorflow < FIRST_WITH_KERAS_3):
        return  # MW604 gives better advice
    names = ("tensorflow.estimator", "tensorflow_estimator")
    used = [call for call in script.calls() if call.name.startswith(names) and call.receiver is None]
    for call in used[:1]:
        yield violation(call, "", ERROR if script.tensorflow else WARNING)


@rule("MW604")
def _tensorflow_1(script: Script) -> Iterator[Violation]:
    for location, name in script.tf1[:1] if not script.tensorflow or script.tensorflow >= (2,) else ():
        more = f", and {len(script.tf1) - 1} more" if len(script.tf1) > 1 else ""
        yield violation(location, "", ERROR if script.tensorflow else WARNING, name=name, more=more)


@rule("MW701")
def _reads_terminal(script: Script) -> Iterator[Violation]:
    for call in script.calls():
        if call.name in _PROMPTS and not _catches(call, "EOFError"):
            yield violation(call, "prompt", name=shown(call.name))
        elif call.name in _STDIN:
            yield violation(call, "stdin", name=shown(call.name))


def _catches(call: Call, exception: str) -> bool:
    return any({exception, "*"} & set(guard.caught) for guard in call.guards)


@rule("MW702")
def _notebook(script: Script) -> Iterator[Violation]:
    events = list(script.calls("get_ipython"))
    outputs = [call.receiver.call for call in script.calls("getoutput") if call.receiver is not None]
    for call in events if not any(_catches(event, "NameError") for event in events) else ():
        if call.name == "builtins.get_ipython":
            yield violation(call, "output" if call in outputs else "command")


@rule("MW703")
def _spawn(script: Script) -> Iterator[Violation]:
    for call in script.calls("Process", "Pool"):
        context = call.receiver.call if call.receiver is not None else None
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
