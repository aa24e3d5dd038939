"""Find what a script imports first, and name the warm process that a task may be forked from. Pure."""

from __future__ import annotations

import _ast as ast  # the module ast would take 0.4 MB more in each supervisor
import hashlib
import os
import re
import sys
import warnings
from typing import List, Mapping, NamedTuple, Optional, Sequence, Tuple

VARIABLE = "FLEET_WARM"
_HEAVY = ("tensorflow", "tf_keras", "keras", "jax", "torch")
# Packages with libraries that may conflict with those of a framework: they are imported in the script's order.
_MODULES = (*_HEAVY, "numpy", "h5py", "pandas", "scipy", "sklearn")
# Common packages that neither change what the import of one of these modules does nor depend on it.
_HARMLESS = ("absl", "matplotlib", "PIL", "requests", "tqdm", "yaml")
_STANDARD = """
__future__ abc argparse ast asyncio atexit base64 bisect collections concurrent contextlib copy csv ctypes
dataclasses datetime decimal enum errno faulthandler fcntl fnmatch fractions functools gc getpass glob gzip
hashlib heapq importlib inspect io itertools json logging math multiprocessing numbers operator os pathlib
pickle platform pprint queue random re resource select shlex shutil signal socket statistics string struct
subprocess sys tempfile textwrap threading time timeit traceback types typing unittest urllib uuid warnings
weakref zipfile zlib
""".split()  # noqa: SIM905 - a list of 90 strings is harder to read
# Variables of a session or a job that no import reads.
_VOLATILE = re.compile(
    r"TF_CONFIG|TMPDIR|FLEET_(?!ADAPT$|INSTANCE$)\w*|AIP_\w+|PWD|OLDPWD|SHLVL|_|SSH_\w+|XDG_SESSION_ID|TERM|COLUMNS|LINES|"
    r"no_proxy|NO_PROXY|no_grpc_proxy"
)
_SESSION_SCOPE = re.compile(r"session-[^/]+\.scope")


class Program(NamedTuple):
    """The script of a command, and the statements with which it begins."""

    path: str = ""  # of its file, as a traceback shows it
    first_path: str = ""  # the directory from which Python imports first
    words: int = 0  # of the command before the script's arguments
    statements: Tuple[Tuple[int, str], ...] = ()  # each with its line
    modules: Tuple[str, ...] = ()  # that these import
    obstacle: str = ""  # why the start is cold


class Process(NamedTuple):
    """The properties that a process passes on to those that it forks."""

    limits: Tuple[Tuple[int, int], ...] = ()
    nice: int = 0
    processors: Tuple[int, ...] = ()
    namespaces: Tuple[str, ...] = ()
    group: str = ""  # control groups, as /proc/self/cgroup has them
    user: Tuple[int, ...] = ()  # of user and groups, effective and real
    interpreter: Tuple[int, ...] = ()  # state of its file
    status: Tuple[str, ...] = ()  # capabilities and filters, as /proc/self/status has them, and others of its kind
    keys: Tuple[str, ...] = ()  # of the session's keyrings, such as Kerberos tickets and AFS tokens


class Plan(NamedTuple):
    """The way in which a task starts."""

    key: str = ""  # of the warm process; empty: none
    text: str = ""  # of `VARIABLE`, with which a cold task makes the warm process
    first_path: str = ""
    obstacle: str = ""


def read_program(command: Sequence[str], directory: str) -> Program:
    """Return the script of a command, with the statements that it begins with."""
    if len(command) > 2 and command[1] == "-m":
        path, words = _find_module(command[2], directory), 3
        first_path = os.path.realpath(directory)
    else:
        path, words = os.path.join(directory, command[1]) if len(command) > 1 else "", 2
        first_path = os.path.dirname(os.path.realpath(path))
    if not os.path.isfile(path):
        return Program(obstacle="the script is not a file of Python")
    try:
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the script; they are its own affair
            tree: ast.Module = compile(  # type: ignore[assignment]
                file.read(), path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True
            )
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return Program(obstacle="the script cannot be parsed")
    statements, modules = first_statements(tree)
    if not any(module in _HEAVY for module in modules):
        return Program(
            obstacle=f"the script does not begin with the import of {', '.join(_HEAVY[:-1])}, or {_HEAVY[-1]}"
        )
    shown = path if words == 3 else command[1]
    return Program(shown, first_path, words, tuple(statements), tuple(modules))


def _find_module(name: str, directory: str) -> str:
    """Return the file of a module of the job whose packages run no code before it; empty if there is none.

    A package with the same name takes precedence over the file.
    """
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        package = os.path.join(directory, *parts[:count], "__init__.py")
        if os.path.exists(package) and (count == len(parts) or os.path.getsize(package)):
            return ""
    return os.path.join(directory, *parts) + ".py"


def first_statements(tree: ast.Module) -> Tuple[List[Tuple[int, str]], List[str]]:
    """Return the statements that a warm process executes, and the modules that they import.

    These are imports of frameworks, and variables of the environment that are set to constants before or between
    them. The first statement that could change what an import does ends them.
    """
    result: List[Tuple[int, str, str]] = []
    for node in tree.body:
        items = _statements(node)
        if items is None:
            break
        result += [(node.lineno, text, module) for text, module in items]
    while result and not result[-1][2]:
        result.pop()  # variables that no import follows
    modules = list(dict.fromkeys(module for _, _, module in result if module))
    return [(line, text) for line, text, _ in result], modules


def _statements(node: ast.stmt) -> Optional[List[Tuple[str, str]]]:
    """Return what to execute of a statement, each with the module that it imports; None: it ends them."""
    if isinstance(node, ast.Import):
        return _imports([(alias.name, f"import {alias.name}") for alias in node.names])
    if isinstance(node, ast.ImportFrom):
        names = ", ".join(alias.name for alias in node.names)
        is_absolute = not node.level and node.module is not None and "*" not in names
        return _imports([(node.module or "", f"from {node.module} import {names}")]) if is_absolute else None
    variable = _read_variable(node)
    return [(variable, "")] if variable else [] if _is_plain(node) else None


def _is_plain(node: ast.stmt) -> bool:
    """Return True for a docstring, and for a constant that is given a name."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
        return all(isinstance(target, ast.Name) and not target.id.startswith("__") for target in node.targets)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _read_variable(node: ast.stmt) -> str:
    """Return the statement that sets a variable of the environment to a constant; empty for other statements."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Subscript):
        target = node.targets[0]
        if _is_environment(target.value) and isinstance(node.value, ast.Constant):
            name = _read_text(getattr(target.slice, "value", None) if sys.version_info < (3, 9) else target.slice)
            return f"import os; os.environ[{name!r}] = {node.value.value!r}" if name is not None else ""
    if isinstance(node, ast.Expr) and _is_default(node.value):
        name, value = (_read_text(item) for item in node.value.args)  # type: ignore[attr-defined]
        return f"import os; os.environ.setdefault({name!r}, {value!r})"
    return ""


def _imports(items: Sequence[Tuple[str, str]]) -> Optional[List[Tuple[str, str]]]:
    result = []
    for name, text in items:
        root = name.partition(".")[0]
        if root in _MODULES:
            result.append((text, root))
        elif root not in _HARMLESS and root not in _STANDARD:
            return None
    return result


def _is_environment(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "environ"
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    )


def _read_text(node: Optional[ast.AST]) -> Optional[str]:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _is_default(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "setdefault"
        and _is_environment(node.func.value)
        and len(node.args) == 2
        and not node.keywords
        and all(_read_text(item) is not None for item in node.args)
    )


def make_plan(
    command: Sequence[str], env: Mapping[str, str], program: Program, process: Process, *, root: str, task: str
) -> Plan:
    """Return how a task starts.

    Args:
        command: Of the task.
        env: Of the task.
        program: Of the command.
        process: That starts it.
        root: Directory of the warm processes.
        task: Directory of the task, which differs between jobs.
    """
    if program.obstacle:
        return Plan(obstacle=program.obstacle)
    path = env.get("PYTHONPATH", "/")
    if task in path or not all(os.path.isabs(item) for item in path.split(os.pathsep)):
        return Plan(obstacle="PYTHONPATH names a directory of the job")
    kept = {name: value.replace(task, "") for name, value in env.items() if not _VOLATILE.fullmatch(name)}
    texts = [text for _, text in program.statements]
    words = tuple(command[: program.words])
    group = _SESSION_SCOPE.sub("session.scope", process.group)
    state = (words, sorted(kept.items()), texts, process._replace(group=group), sys.version_info[:2])
    key = hashlib.sha256(repr(state).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    volatile = ",".join(name for name in env if _VOLATILE.fullmatch(name))
    lines = [f"{line} {text}" for line, text in program.statements]
    fields = [root, key, program.path, program.first_path, volatile, ",".join(program.modules)]
    if any("\n" in field for field in [*fields, *texts]):
        return Plan(obstacle="a path contains a line break")
    return Plan(key, "\n".join([*fields, *lines]), program.first_path)
