"""Rules on operations that are not possible on a host (MW7xx)."""

from __future__ import annotations

from collections.abc import Iterator

from train.lint.interpreter.values import Call, Const, Location, Made, Value, text
from train.lint.rule import ERROR, WARNING, Violation, rule
from train.lint.subject import Subject, shown
from train.script.requirements import FILES

_STDIN = ("sys.stdin.read", "sys.stdin.readline", "sys.stdin.readlines", "sys.stdin.buffer.read", "fileinput.input")
_PACKAGES = ("jax", "keras", "numpy", "tensorflow", "tf_keras", "torch")
_PROMPTS = ("builtins.input", "builtins.breakpoint", "pdb.set_trace", "ipdb.set_trace", "getpass.getpass")


@rule(
    "MW701",
    ERROR,
    reason="a task has no terminal: the call fails with an EOFError, or waits forever",
    fix="use an argument (fleet train task.py -- --name value) or a variable (fleet train --env)",
)
def _reads_terminal(subject: Subject) -> Iterator[Violation]:
    for call in subject.trace.calls:
        if call.name in _PROMPTS and not _caught(call, "EOFError"):
            yield Violation(call, f"the script asks the user ({shown(call.name)})")
        elif call.name in _STDIN:
            yield Violation(
                call,
                f"the script reads standard input ({shown(call.name)})",
                WARNING,
                "the standard input of a task is empty: the script reads no data",
                "read it from a file next to the script, which fleet train uploads, or from --data FILE",
            )


@rule(
    "MW702",
    ERROR,
    reason="a task runs without IPython: the line fails with a NameError",
    fix=f"delete the line; install packages with {FILES}",
)
def _notebook(subject: Subject) -> Iterator[Violation]:
    for call in subject.calls("get_ipython") if not subject.trace.without_ipython else ():
        if call.name == "builtins.get_ipython":
            used = any(call in subject.made_by(other.receiver) for other in subject.calls("getoutput"))
            fix = "use subprocess.check_output(…, text=True), which returns the output" if used else ""
            yield Violation(call, "the script has a notebook command (get_ipython)", fix=fix)


def _caught(call: Call, exception: str) -> bool:
    return any(guard.kind == "try" and {exception, "*"} & set(guard.caught) for guard in call.guards)


@rule(
    "MW703",
    ERROR,
    reason="each process starts further ones before it is ready: RuntimeError: An attempt has been made to "
    "start a new process before the current process has finished its bootstrapping phase",
    fix='if __name__ == "__main__": main()',
)
def _spawn(subject: Subject) -> Iterator[Violation]:
    for call in subject.calls("Process", "Pool"):
        of_package = call.name.partition(".")[0] == "multiprocessing"
        if of_package and not call.main_only and _starts_interpreter(subject, call):
            message = f"{call.method} runs whenever the script is imported, and its processes import the script"
            yield Violation(call, message)


def _starts_interpreter(subject: Subject, call: Call) -> bool:
    """Return whether a process starts a new interpreter instead of a copy."""
    method: Value | None = None
    if isinstance(call.receiver, Made) and call.receiver.call.method == "get_context":
        method = call.receiver.call.argument("method", 0)
    else:
        for item in subject.calls("set_start_method"):
            method = item.argument("method", 0)
    return text(method) in ("spawn", "forkserver")


@rule(
    "MW704",
    WARNING,
    reason="`fleet` adds the workers' addresses to it: without them the workers cannot connect through a proxy, "
    "and wait forever without a message",
)
def _proxy(subject: Subject) -> Iterator[Violation]:
    first = min((call.order for call in [*subject.multi, *subject.parameter_server]), default=0)
    for item in subject.settings() if subject.workers > 1 else ():
        replaces = item.value is None or (isinstance(item.value, Const) and item.value.value != "*")
        if item.name.lower() == "no_proxy" and replaces and not item.default and item.call.order < first:
            fix = f'add to it: os.environ["{item.name}"] += ",…"'
            yield Violation(item.call, f"the script overwrites {item.name}", fix=fix)


@rule(
    "MW705",
    ERROR,
    reason="Python searches the script's directory first: the script, and packages that need the hidden one, import "
    "this file instead",
    fix="rename it",
)
def _hidden_package(subject: Subject) -> Iterator[Violation]:
    for file in subject.files:
        name, _, rest = file.removesuffix(".py").partition("/")
        if name in _PACKAGES and rest in ("", "__init__"):
            yield Violation(Location(file, 1, 1), f"this module hides the package {name}")


@rule(
    "MW706",
    WARNING,
    reason="it ends at once with exit code 0, and nothing is trained",
    fix='call the function at the end of the script: if __name__ == "__main__": main()',
)
def _idle(subject: Subject) -> Iterator[Violation]:
    if subject.idle is not None and not subject.trainings:
        yield Violation(subject.idle, "the script defines functions, but calls none of them")
