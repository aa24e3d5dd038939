"""Rules on versions of TensorFlow and Keras (MW6xx), and on operations that are not possible on a host (MW7xx)."""

from __future__ import annotations

from collections.abc import Iterator

from train.errors import KerasError
from train.lint.names import MODEL, shown
from train.lint.rule import ERROR, HINT, WARNING, Violation, rule
from train.lint.script import Script
from train.lint.values import Call, Const, Location, text
from train.script.keras import FIRST_WITH_KERAS_3, VARIABLE, Requirement, choose
from train.script.requirements import FILES

_PACKAGES = ("jax", "keras", "numpy", "tensorflow", "tf_keras", "torch")
_PROMPTS = ("builtins.input", "builtins.breakpoint", "pdb.set_trace", "ipdb.set_trace", "getpass.getpass")
_STDIN = ("sys.stdin.read", "sys.stdin.readline", "sys.stdin.readlines", "sys.stdin.buffer.read", "fileinput.input")
_IMPORT = "replace `import keras` with `from tensorflow import keras` in all modules"


@rule("MW601", ERROR)
def _keras_3(script: Script) -> Iterator[Violation]:
    need = script.need
    location = Location(need.file, need.line, 1)
    if script.tensorflow and script.versions is not None:
        tasks = {f"worker-{index}": script.versions for index in range(script.workers)}
        try:
            choose(need, tasks, {}, adapt=script.adapt)
        except KerasError as error:
            yield Violation(location, error.message, ERROR, error.cause, error.hint)
    elif need.requirement is Requirement.KERAS_3_FIT and script.workers > 1:
        if script.adapt and not need.only_new:
            message = f"the script {need.reason}, which works with one worker only"
            reason = "`fleet` makes `import keras` import tf-keras unless --no-adapt is given"
            yield Violation(location, message, HINT, reason, _IMPORT)
        else:
            yield Violation(
                location,
                f"the script {need.reason}",
                WARNING,
                "with TensorFlow 2.16 and later `import keras` is Keras 3, whose fit, evaluate, and predict work "
                "with one worker only: with more they fail with an error about PerReplica",
                f"{_IMPORT}, which then use legacy Keras; or write a custom training loop",
            )


@rule("MW602", ERROR)
def _variable(script: Script) -> Iterator[Violation]:
    # These imports make TensorFlow load Keras immediately.
    imports = (call for call in script.calls("import") if call.args[0].name.startswith("tensorflow.keras."))
    loaded = next(imports, None)
    fits = [call for call in script.of(MODEL, "fit", "evaluate", "predict") if script.multi and script.workers > 1]
    modern = not script.tensorflow or script.tensorflow >= FIRST_WITH_KERAS_3
    for item in (item for item in script.settings() if item.name == VARIABLE):
        value = text(item.value)
        if value in ("1", "true", "True") and loaded is not None and loaded.order < item.call.order:
            yield Violation(
                item.call,
                f"{VARIABLE} is set after Keras was imported ({loaded.location.seen_from(item.call.location)})",
                ERROR,
                "TensorFlow reads it when it loads Keras: earlier imports use Keras 3, and the two versions are "
                "incompatible",
                "set it before all imports, or remove it: `fleet` sets it for scripts that need it",
            )
        elif value not in (None, "1", "true", "True") and fits and modern:
            yield Violation(
                item.call,
                f"the script chooses Keras 3 ({VARIABLE}={value!r}) and calls {fits[0].method} across workers",
                ERROR if script.tensorflow else WARNING,
                "the fit, evaluate and predict of Keras 3 work with one worker only",
                "do not set the variable: `fleet` chooses legacy Keras if it is needed",
            )


@rule(
    "MW603",
    ERROR,
    "TensorFlow 2.16 and later do not have Estimators",
    "use a Keras model in the scope of MultiWorkerMirroredStrategy, or tensorflow~=2.15.0 on all hosts",
)
def _estimators(script: Script) -> Iterator[Violation]:
    if script.tf1 or (script.tensorflow and script.tensorflow < FIRST_WITH_KERAS_3):
        return  # MW604 gives better advice
    names = ("tensorflow.estimator", "tensorflow_estimator")
    used = [call for call in script.calls() if call.name.startswith(names) and call.receiver is None]
    for call in used[:1]:
        level = ERROR if script.tensorflow else WARNING
        yield Violation(call, f"the script uses an Estimator ({call.method})", level)


@rule(
    "MW604",
    ERROR,
    "it fails: no version of TensorFlow 2 has this name",
    "convert it with TensorFlow's tf_upgrade_v2 --infile task.py --outfile task2.py, then use "
    "MultiWorkerMirroredStrategy; an older TensorFlow 2 does not help",
)
def _tensorflow_1(script: Script) -> Iterator[Violation]:
    for location, name in script.tf1[:1] if not script.tensorflow or script.tensorflow >= (2,) else ():
        more = f", and {len(script.tf1) - 1} more" if len(script.tf1) > 1 else ""
        message = f"the script is written for TensorFlow 1 ({name}{more})"
        yield Violation(location, message, ERROR if script.tensorflow else WARNING)


@rule(
    "MW701",
    ERROR,
    "a task has no terminal: the call fails with an EOFError, or waits forever",
    "use an argument (fleet train task.py -- --name value) or a variable (fleet train --env)",
)
def _reads_terminal(script: Script) -> Iterator[Violation]:
    for call in script.calls():
        if call.name in _PROMPTS and not _catches(call, "EOFError"):
            yield Violation(call, f"the script asks the user ({shown(call.name)})")
        elif call.name in _STDIN:
            yield Violation(
                call,
                f"the script reads standard input ({shown(call.name)})",
                WARNING,
                "the standard input of a task is empty: the script reads no data",
                "read it from a file next to the script, which fleet train uploads, or from --data FILE",
            )


def _catches(call: Call, exception: str) -> bool:
    return any({exception, "*"} & set(guard.caught) for guard in call.guards)


@rule(
    "MW702",
    ERROR,
    "a task runs without IPython: the line fails with a NameError",
    f"delete the line; install packages with {FILES}",
)
def _notebook(script: Script) -> Iterator[Violation]:
    events = list(script.calls("get_ipython"))
    outputs = [call.receiver.call for call in script.calls("getoutput") if call.receiver is not None]
    for call in events if not any(_catches(event, "NameError") for event in events) else ():
        if call.name == "builtins.get_ipython":
            fix = "use subprocess.check_output(…, text=True), which returns the output" if call in outputs else ""
            yield Violation(call, "the script has a notebook command (get_ipython)", fix=fix)


@rule(
    "MW703",
    ERROR,
    "each process starts further ones before it is ready: RuntimeError: An attempt has been made to "
    "start a new process before the current process has finished its bootstrapping phase",
    'if __name__ == "__main__": main()',
)
def _spawn(script: Script) -> Iterator[Violation]:
    for call in script.calls("Process", "Pool"):
        context = call.receiver.call if call.receiver is not None else None
        starts = [context] if context is not None else list(script.calls("set_start_method"))
        method = text(starts[-1].argument("method", 0)) if starts else None
        is_main = any(guard.kind == "main" for guard in call.guards)
        if call.name.startswith("multiprocessing.") and not is_main and method in ("spawn", "forkserver"):
            message = f"{call.method} runs whenever the script is imported, and its processes import the script"
            yield Violation(call, message)


@rule(
    "MW704",
    WARNING,
    "`fleet` adds the workers' addresses to it: without them the workers cannot connect through a proxy, "
    "and wait forever without a message",
)
def _proxy(script: Script) -> Iterator[Violation]:
    first = min((call.order for call in [*script.multi, *script.parameter_server]), default=0)
    for item in script.settings() if script.workers > 1 else ():
        replaces = item.value is None or (isinstance(item.value, Const) and item.value.value != "*")
        if item.name.lower() == "no_proxy" and replaces and not item.default and item.call.order < first:
            fix = f'add to it: os.environ["{item.name}"] += ",…"'
            yield Violation(item.call, f"the script overwrites {item.name}", fix=fix)


@rule(
    "MW705",
    ERROR,
    "Python searches the script's directory first: the script, and packages that need the hidden one, import "
    "this file instead",
    "rename it",
)
def _hidden_package(script: Script) -> Iterator[Violation]:
    for file in script.files:
        name, _, rest = file.removesuffix(".py").partition("/")
        if name in _PACKAGES and rest in ("", "__init__"):
            yield Violation(Location(file, 1, 1), f"this module hides the package {name}")


@rule(
    "MW706",
    WARNING,
    "it ends at once with exit code 0, and nothing is trained",
    'call the function at the end of the script: if __name__ == "__main__": main()',
)
def _idle(script: Script) -> Iterator[Violation]:
    if script.idle is not None and not script.trainings:
        yield Violation(script.idle, "the script defines functions, but calls none of them")
