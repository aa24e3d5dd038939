"""Rules on operations that are not possible on a host (MW7xx)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from train.lint.interpreter.values import Call, Const, Made, Value, text
from train.lint.model import Severity
from train.lint.subject import Subject, Violation, severity, shown

_STDIN = ("sys.stdin.read", "sys.stdin.readline", "sys.stdin.readlines", "sys.stdin.buffer.read", "fileinput.input")
_ASKS = ("builtins.input", "builtins.breakpoint", "pdb.set_trace", "ipdb.set_trace", "getpass.getpass")


def _asks(subject: Subject) -> Iterator[Violation]:
    """Check for MW701."""
    for call in subject.trace.calls:
        if call.name in _ASKS and not _caught(call, "EOFError"):
            yield Violation(
                call.place,
                severity(call, Severity.ERROR),
                f"the script asks the user ({shown(call.name)})",
                "a task has no terminal: the call fails with an EOFError, or waits forever",
                "use an argument (fleet train task.py -- --name value) or a variable (fleet train --env)",
            )
        elif call.name in _STDIN:
            yield Violation(
                call.place,
                Severity.WARNING,
                f"the script reads standard input ({shown(call.name)})",
                "the standard input of a task is empty: the script reads no data",
                "read it from a file next to the script, which fleet train uploads, or from --data FILE",
            )


def _notebook(subject: Subject) -> Iterator[Violation]:
    """Check for MW702."""
    for call in subject.trace.calls if not subject.trace.without_ipython else ():
        if call.name == "builtins.get_ipython":
            yield Violation(
                call.place,
                severity(call, Severity.ERROR),
                "the script has a notebook command (get_ipython)",
                "a task runs without IPython: the line fails with a NameError",
                "delete the line; install packages with requirements.txt",
            )


def _caught(call: Call, exception: str) -> bool:
    return any(guard.kind == "try" and {exception, "*"} & set(guard.caught) for guard in call.guards)


def _spawn(subject: Subject) -> Iterator[Violation]:
    """Check for MW703."""
    for call in subject.trace.calls:
        if call.name.partition(".")[0] != "multiprocessing" or call.method not in ("Process", "Pool"):
            continue
        if call.main_only or not _starts_interpreter(subject, call):
            continue
        yield Violation(
            call.place,
            severity(call, Severity.ERROR),
            f"{call.method} runs whenever the script is imported, and its processes import the script",
            "each process starts further ones before it is ready: RuntimeError: An attempt has been made to "
            "start a new process before the current process has finished its bootstrapping phase",
            'if __name__ == "__main__": main()',
        )


def _starts_interpreter(subject: Subject, call: Call) -> bool:
    """Return whether a process starts a new interpreter instead of a copy."""
    method: Value | None = None
    if isinstance(call.receiver, Made) and call.receiver.call.method == "get_context":
        method = call.receiver.call.argument("method", 0)
    else:
        for item in subject.calls("set_start_method"):
            method = item.argument("method", 0)
    return text(method) in ("spawn", "forkserver")


def _proxy(subject: Subject) -> Iterator[Violation]:
    """Check for MW704."""
    first = min((call.order for call in [*subject.multi, *subject.parameter_server]), default=0)
    for call in subject.trace.calls if subject.workers > 1 else ():
        name, value = _written(call)
        if name.lower() == "no_proxy" and call.order < first and isinstance(value, Const) and value.value != "*":
            yield Violation(
                call.place,
                severity(call, Severity.WARNING),
                f"the script overwrites {name}",
                "`fleet` adds the workers' addresses to it: without them the workers cannot connect through a proxy, "
                "and wait forever without a message",
                f'add to it: os.environ["{name}"] += ",…"',
            )


def _written(call: Call) -> tuple[str, Value | None]:
    """Return the environment variable that a call sets or deletes, and its new value."""
    if call.name in ("os.environ.__setitem__", "os.putenv") and len(call.args) == 2:
        return text(call.args[0]) or "", call.args[1]
    if call.name == "os.environ.pop" and call.args:
        return text(call.args[0]) or "", Const()
    return "", None


RULES: dict[str, Callable[[Subject], Iterator[Violation]]] = {
    "MW701": _asks,
    "MW702": _notebook,
    "MW703": _spawn,
    "MW704": _proxy,
}
