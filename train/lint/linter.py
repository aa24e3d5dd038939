"""Check a script and the modules of its directory that it imports.

Nothing is executed or imported: the syntax trees are followed as Python would run them, and unknown values give no
finding. A line with ``# fleet: ignore[MW101]``, or ``# fleet: ignore`` for all rules, suppresses the findings of its
statement.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from train.agent.injected.adaptations import TF_CONFIG
from train.errors import ScriptError
from train.lint import cluster, training
from train.lint.cluster import foreign_tf_config
from train.lint.finding import Finding, Severity
from train.lint.names import is_in
from train.lint.script import RULES, Script
from train.lint.tracer import trace
from train.lint.values import Location
from train.script.dotted import uses
from train.script.keras import need_of
from train.script.source import Source

MODULES = (cluster, training)
"""The modules that declare the rules."""
UNREADABLE = "MW001"
"""Name of the finding for a file that does not compile; it has no rule function."""
_IGNORE = re.compile(r"#\s*fleet:\s*ignore(?:\[([A-Za-z0-9_,\s]*)\])?", re.IGNORECASE)


def lint(
    sources: Sequence[Source],
    *,
    workers: int,
    gpus: int | None = None,
    versions: Mapping[str, str] | None = None,
    adapt: bool = True,
    servers: bool | None = None,
    chief: bool | None = None,
) -> list[Finding]:
    """Return the bugs that a script has with several workers, ordered by file (the script first) and line.

    Args:
        sources: The script, and its modules.
        workers: Number of workers.
        gpus: Number of GPUs of each worker; None if unknown.
        versions: Versions of ``tensorflow``, ``keras``, and ``tf_keras`` on the hosts; None if unknown.
        adapt: True if `fleet` adapts the interpreters to scripts for older TensorFlow.
        servers: True if the job has a chief and parameter servers; None if unknown.
        chief: True if the job has a task of this type; None if unknown.
    """
    result = {_unreadable(source.name, source.error, source is sources[0]) for source in sources if source.error}
    script = _script(tuple(sources))
    if script is not None:
        script = replace(script, workers=workers, gpus=gpus, versions=versions)
        script = replace(script, adapt=adapt, servers=servers, chief=chief)
        result |= {item for rule in RULES.values() for item in rule(script)}
    files = {item.file for item in result}
    ignored = {source.name: _ignored(source) for source in sources if source.name in files}
    kept = [item for item in result if not {"*", item.rule} & ignored[item.file].get(item.line, set())]
    kept.sort(key=lambda item: (item.line, item.rule, item.column, item.message))
    return sorted(kept, key=lambda item: (item.file != sources[0].name, item.file))


def job_tf_config(sources: Sequence[Source]) -> str:
    """Return the name of the adaptation to a script that replaces the job's TF_CONFIG; empty: it does not."""
    script = _script(tuple(sources))
    write = foreign_tf_config(script) if script is not None else None
    return f"{TF_CONFIG}:{'+'.join(write[1])}:{write[0].file}:{write[0].line}" if write else ""


@lru_cache(maxsize=4)
def _script(sources: tuple[Source, ...]) -> Script | None:
    """Return a script to check, for one worker on unknown hosts; None: it does not compile. It is followed once."""
    tree = sources[0].tree if sources else None
    if tree is None:
        return None
    entry = sources[0].name
    trees = {source.name: source.tree for source in sources if source.tree is not None}
    texts = {source.name: source.text.splitlines() for source in sources}
    run = trace(trees, texts, entry)
    return Script(run, need_of(sources), tuple(trees), tuple(_uses_of_tf1(trees)), _find_idle(tree, entry))


def _uses_of_tf1(trees: Mapping[str, ast.Module]) -> Iterator[tuple[Location, str]]:
    """Yield the uses of names that TensorFlow 2 does not have, ``tf.Session``, one for each line."""
    for file, tree in trees.items():
        lines: set[int] = set()
        for use in uses(tree, file):
            if is_in("tensorflow_1", use.written) and use.line not in lines:
                lines.add(use.line)
                yield Location(file, use.line, use.column), use.written.replace("tensorflow", "tf", 1)


def _find_idle(tree: ast.Module, file: str) -> Location | None:
    """Return the main function of a script that defines functions and calls none of them; None: another script."""
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    decorators = [each for node in defined.values() for each in node.decorator_list]
    others = [
        node
        for node in tree.body
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom)
    ]
    inside = [(node, inner) for node in others for inner in ast.walk(node)]
    is_used = any(isinstance(inner, ast.Name) and inner.id in defined for _, inner in inside)
    acts = any(isinstance(inner, ast.Call) and not isinstance(node, ast.Assign) for node, inner in inside)
    shown = defined.get("main")
    if shown is None or is_used or acts or not all(ast.unparse(each).startswith("tf.") for each in decorators):
        return None
    return Location(file, shown.lineno, shown.col_offset + 1)


def _unreadable(name: str, error: ScriptError, is_entry: bool) -> Finding:
    """Return the finding for a file that does not compile; for a module it is a warning, as it may not be reached."""
    match = re.match(rf"{re.escape(name)}:(\d+): (.*)", error.message, re.DOTALL)
    line, message = (int(match[1]), match[2]) if match else (1, error.message)
    level = Severity.ERROR if is_entry else Severity.WARNING
    return Finding(UNREADABLE, name, line, 1, level, message, error.cause, error.hint)


def _ignored(source: Source) -> dict[int, frozenset[str]]:
    """Return the suppressed rules by line; ``*``: all rules."""
    comments: dict[int, frozenset[str]] = {}
    with suppress(tokenize.TokenError, SyntaxError):  # files that do not compile have a finding anyway
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
            match = _IGNORE.match(token.string) if token.type == tokenize.COMMENT else None
            if match:
                rules = "*" if match[1] is None else re.findall(r"\w+", match[1].upper())
                comments[token.start[0]] = frozenset(rules)
    result = dict(comments)
    for node in ast.walk(source.tree) if source.tree is not None and comments else ():
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            inside = [comments[line] for line in lines if line in comments]
            result |= dict.fromkeys(lines, frozenset().union(*inside)) if inside else {}
    return result
