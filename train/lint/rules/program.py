"""What a program on a host cannot do: MW7xx."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from train.lint.interpreter.values import Call, Const, Made, Value, text
from train.lint.model import Severity
from train.lint.subject import Found, Subject, severity, shown

_STDIN = ("sys.stdin.read", "sys.stdin.readline", "sys.stdin.readlines", "sys.stdin.buffer.read", "fileinput.input")
_ASKS = ("builtins.input", "builtins.breakpoint", "pdb.set_trace", "ipdb.set_trace", "getpass.getpass")


def _asks(subject: Subject) -> Iterator[Found]:
    """MW701."""
    for call in subject.trace.calls:
        if call.name in _ASKS and not _caught(call, "EOFError"):
            yield Found(
                call.place,
                severity(call, Severity.ERROR),
                f"the script asks somebody ({shown(call.name)})",
                "a task has no terminal: it fails with an EOFError, or nobody answers",
                "take it from an argument, fleet train task.py -- --name value, or a variable, fleet train --env",
            )
        elif call.name in _STDIN:
            yield Found(
                call.place,
                Severity.WARNING,
                f"the script reads standard input ({shown(call.name)})",
                "the standard input of a task is empty: the script gets no data",
                "read it from a file beside the script, which fleet train uploads, or from --data FILE",
            )


def _notebook(subject: Subject) -> Iterator[Found]:
    """MW702."""
    for call in subject.trace.calls if not subject.trace.without_ipython else ():
        if call.name == "builtins.get_ipython":
            yield Found(
                call.place,
                severity(call, Severity.ERROR),
                "a command of the notebook is left in the script (get_ipython)",
                "there is no IPython in a task: it fails with a NameError",
                "delete the line; what it installs belongs in the hosts' environment",
            )


def _caught(call: Call, exception: str) -> bool:
    return any(guard.kind == "try" and {exception, "*"} & set(guard.caught) for guard in call.guards)


def _spawn(subject: Subject) -> Iterator[Found]:
    """MW703."""
    for call in subject.trace.calls:
        if call.name.partition(".")[0] != "multiprocessing" or call.method not in ("Process", "Pool"):
            continue
        if call.main_only or not _starts_anew(subject, call):
            continue
        yield Found(
            call.place,
            severity(call, Severity.ERROR),
            f"{call.method} is made wherever the script is imported, and its processes import the script",
            "each tries to start others before it is ready: RuntimeError: An attempt has been made to start a new "
            "process before the current process has finished its bootstrapping phase",
            'if __name__ == "__main__": main()',
        )


def _starts_anew(subject: Subject, call: Call) -> bool:
    """Whether a process begins with an interpreter of its own instead of a copy."""
    method: Value | None = None
    if isinstance(call.receiver, Made) and call.receiver.call.method == "get_context":
        method = call.receiver.call.argument("method", 0)
    else:
        for item in subject.calls("set_start_method"):
            method = item.argument("method", 0)
    return text(method) in ("spawn", "forkserver")


def _proxy(subject: Subject) -> Iterator[Found]:
    """MW704."""
    first = min((call.order for call in [*subject.multi, *subject.parameter_server]), default=0)
    for call in subject.trace.calls if subject.workers > 1 else ():
        name, value = _written(call)
        if name.lower() == "no_proxy" and call.order < first and isinstance(value, Const) and value.value != "*":
            yield Found(
                call.place,
                severity(call, Severity.WARNING),
                f"the script writes over {name}",
                "`fleet` has put the workers' addresses there: behind a proxy they no longer reach each other, and "
                "wait for ever, in silence",
                f'add to it: os.environ["{name}"] += ",…"',
            )


def _written(call: Call) -> tuple[str, Value | None]:
    """The variable of the environment that a call sets or deletes, and to what."""
    if call.name in ("os.environ.__setitem__", "os.putenv") and len(call.args) == 2:
        return text(call.args[0]) or "", call.args[1]
    if call.name == "os.environ.pop" and call.args:
        return text(call.args[0]) or "", Const()
    return "", None


RULES: dict[str, Callable[[Subject], Iterator[Found]]] = {
    "MW701": _asks,
    "MW702": _notebook,
    "MW703": _spawn,
    "MW704": _proxy,
}
