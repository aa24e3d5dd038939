"""Evaluate calls: functions and classes in the sources are followed, all other calls are recorded."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence

from train.lint.interpreter import conditions
from train.lint.interpreter.api_names import DATASET_CREATOR, Kind, canonical, keras_name, kind_of, type_of
from train.lint.interpreter.evaluate import ENVIRON, Evaluator, element, owned
from train.lint.interpreter.execution import DEEPEST_CALLS
from train.lint.interpreter.values import (
    DIFFERS,
    Arguments,
    Bound,
    Call,
    Class,
    Const,
    Either,
    Element,
    Frame,
    Function,
    Instance,
    Items,
    Made,
    Mark,
    Opaque,
    Ref,
    Table,
    Value,
    is_none,
    join,
    options,
    text,
    union,
    unknown,
)

EXITS = ("sys.exit", "os._exit", "builtins.exit", "builtins.quit", "os.abort")
CALLBACK_METHODS = (
    "on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_batch_begin",
    "on_batch_end", "on_train_batch_end", "on_epoch_end", "on_train_end",
)  # fmt: skip
_TRAINING = ("fit", "evaluate", "predict", "fit_generator")
_RUNS_ITS_ARGUMENT = ("absl.app.run", "tensorflow.app.run", "fire.Fire", "typer.run")
_NEVER_RUNS_ITS_ARGUMENT = re.compile(
    r"^(?:tensorflow|keras|tf_keras|functools|builtins|signal|numpy|unittest|logging)\.|^atexit\."
)
# The result is known if the arguments are known.
_PURE = re.compile(
    r"^(?:builtins\.(?:str|int|float|bool|len|abs|round|min|max|sum|repr|format|list|tuple|sorted|range|divmod|set)"
    r"|(?:os\.path|posixpath|math)\.\w+|os\.fspath|pathlib\.\w+|json\.dumps|copy\.(?:deep)?copy|shlex\.\w+"
    r"|tensorflow\.io\.gfile\.join)$"
)
_READS_VARIABLE = ("os.environ.get", "os.getenv")
_SAME_EVERYWHERE = re.compile(r"\.parse_(?:known_)?args$|^argparse\.|\.parse_args_into_dataclasses$")
_CLOCK = re.compile(
    r"^time\.(?:time|time_ns|monotonic|perf_counter|process_time|monotonic_ns|perf_counter_ns|strftime|localtime|ctime)$"
    r"|^datetime\.(?:datetime|date)\.(?:now|utcnow|today)$|^tensorflow\.timestamp$"
)
_CHANCE = re.compile(r"^(?:random|numpy\.random)\.(?!seed|default_rng|Random|RandomState|SystemRandom)\w+$")
_CHANCE_ALWAYS = re.compile(r"^(?:uuid\.uuid[14]|secrets\.\w+|os\.urandom)$")
_SEEDS = ("random.seed", "numpy.random.seed", "tensorflow.keras.utils.set_random_seed", "keras.utils.set_random_seed")
_HOST = re.compile(r"^(?:socket\.(?:gethostname|getfqdn)|os\.(?:getpid|uname)|platform\.(?:node|uname))$")
_TEMPORARY = re.compile(
    r"^tempfile\.(?:mkdtemp|TemporaryDirectory|mkstemp|NamedTemporaryFile)$|^multiprocessing\.util\.get_temp_dir$"
)
_SOURCES = (
    (_CLOCK, Mark.TIME),
    (_CHANCE_ALWAYS, Mark.RANDOM),
    (_HOST, Mark.HOST),
    (_TEMPORARY, Mark.TEMPORARY),
)
_AS_RECEIVER = ("strftime", "isoformat", "timestamp", "numpy", "item", "name", "__enter__", "total_seconds")
_SCOPED = re.compile(r"\.scope$")
_REDUCES = re.compile(r"\.(?:reduce|gather|all_reduce|all_gather)$")

_ANY = Arguments(starred=True)


class Caller(Evaluator):
    """Evaluates the calls of one script."""

    def _call(self, node: ast.Call) -> Value:
        func = self.evaluate(node.func)
        args: list[Value] = []
        keywords: dict[str, Value] = {}
        starred = False
        for item in node.args:
            value = self.evaluate(item)
            if not isinstance(item, ast.Starred):
                args.append(value)
            elif isinstance(value, Items) and value.exact:
                args += value.items
            else:
                starred = True
        for keyword in node.keywords:
            value = self.evaluate(keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value, Table):
                keywords.update(value.items)
                starred = starred or not value.exact
            else:
                starred = True
        return self.called(func, node, Arguments(args, keywords, starred))

    def called(self, func: Value, node: ast.AST, given: Arguments) -> Value:
        """Return the value of a call of `func`."""
        if isinstance(func, Either):
            return self._any_of(func, node, given)
        target = func.cls.find("__call__") if isinstance(func, Instance) else func
        if isinstance(target, Function):
            return self.enter(owned(target, func) if isinstance(func, Instance) else target, given)
        if isinstance(func, Class):
            return self._instance(func, node, given)
        if isinstance(func, Bound):
            return self._method(func, node, given)
        if isinstance(func, Ref | Made | Element | Instance):
            name, receiver = (func.name, None) if isinstance(func, Ref) else (f"{type_of(func)}.__call__", func)
            return self._outside(name, receiver, node, given)
        self._run_arguments("?", given, node)
        return unknown(union(given.args) & DIFFERS)

    def _any_of(self, func: Either, node: ast.AST, given: Arguments) -> Value:
        """Call one of several functions: a method of objects of one kind once, otherwise each."""
        bounds = [option for option in func.options if isinstance(option, Bound)]
        receivers = [bound.receiver for bound in bounds]
        names = {f"{type_of(bound.receiver)}.{bound.name}" for bound in bounds}
        if len(bounds) == len(func.options) and len(names) == 1 and "?" not in map(type_of, receivers):
            return self._outside(names.pop(), join(receivers), node, given)
        result = []
        for option in func.options:
            with self.under(self.guard("if", node, func.marks)):
                result.append(self.called(option, node, given))
        return join(result, func.marks)

    # --- functions and classes of the sources -----------------------------------------------------------------------

    def _instance(self, cls: Class, node: ast.AST, given: Arguments) -> Value:
        outside = canonical(cls.outside())
        has_base = outside not in ("", "?", "builtins.object")
        made = Instance(cls=cls, call=self.call_seen(outside, node, given) if has_base else None)
        begin = cls.find("__init__")
        if isinstance(begin, Function):
            self.enter(owned(begin, made), given)
        else:
            made.attrs.update(given.keywords)
        return made

    def bind(self, function: Function, given: Arguments) -> dict[str, Value]:
        """Return the parameters of a function in a call."""
        parameters, exact = function.node.args, not given.starred
        plain = [argument.arg for argument in (*parameters.posonlyargs, *parameters.args)]
        args = [function.owner, *given.args] if function.owner is not None else list(given.args)
        result: dict[str, Value] = dict(zip(plain, args, strict=False))
        if parameters.vararg is not None:
            result[parameters.vararg.arg] = Items(union(args), args[len(plain) :], exact)
        named = {*plain, *(argument.arg for argument in parameters.kwonlyargs)}
        result.update({name: value for name, value in given.keywords.items() if name in named})
        if parameters.kwarg is not None:
            rest = {name: value for name, value in given.keywords.items() if name not in named}
            result[parameters.kwarg.arg] = Table(union(rest.values()), rest, exact)
        defaults = function.defaults if exact else {}
        return {name: defaults.get(name) or unknown() for name in named} | result

    # --- everything else --------------------------------------------------------------------------------------------

    def _method(self, bound: Bound, node: ast.AST, given: Arguments) -> Value:
        receiver, args = bound.receiver, given.args
        if bound.name == "get" and conditions.meaning_of(receiver) in ("tf_config", "task", "cluster"):
            return self.item(receiver, args[0] if args else unknown(), args[1] if len(args) > 1 else None)
        if isinstance(receiver, Table):
            return self._of_table(receiver, bound.name, given)
        if isinstance(receiver, Items):
            return self._of_items(receiver, bound.name, args)
        result = _of_scalar(receiver, bound.name, union([receiver, *given.everything()]))
        return result or self._outside(f"{type_of(receiver)}.{bound.name}", receiver, node, given)

    def _of_table(self, table: Table, name: str, given: Arguments) -> Value:
        args = given.args
        if name in ("get", "pop", "setdefault") and args:
            default = args[1] if len(args) > 1 else Const() if name == "get" else None
            return self.item(table, args[0], default)
        if name == "update":
            table.items.update(given.keywords)
            table.exact = table.exact and not args
        return unknown(table.marks)

    def _of_items(self, items: Items, name: str, args: Sequence[Value]) -> Value:
        if name in ("append", "add", "insert") and args:
            items.items.append(args[-1])
            items.marks |= args[-1].marks
        elif name == "extend" and args and isinstance(args[0], Items):
            items.items += args[0].items
            items.exact = items.exact and args[0].exact
        else:
            items.exact = False
        items.exact = items.exact and not self.conditional()
        return unknown(items.marks)

    def _outside(self, name: str, receiver: Value | None, node: ast.AST, given: Arguments) -> Value:
        """Record a call of a function outside the sources."""
        if name in _READS_VARIABLE:
            self.call_seen(name, node, given)
        value = self._plain(name, given)
        if value is not None:
            return value
        call = self.call_seen(name, node, given, receiver)
        made = Made(_result_marks(call, seeded=self.seeded), call=call)
        self.seeded = self.seeded or name in _SEEDS
        if name in EXITS:
            self.exited = True
            self.record_exit(self.loops())
        if any(_is_scope(value) for value in call.everything()):
            self.scopes.insert(0, None)  # the function that received it may enter it
        if name.endswith(".__enter__") and _is_scope(receiver):
            self.scopes.append(receiver.call.receiver if isinstance(receiver, Made) else None)
        if name == "tensorflow.distribute.experimental_set_strategy":
            self.scopes.append(given.args[0] if given.args else None)
        self._run_what_it_runs(call, node)
        if _SAME_EVERYWHERE.search(name) and not name.endswith("ArgumentParser"):
            return Opaque(Mark.GIVEN, "args")
        return Opaque(made.marks) if _PURE.match(name) else made

    def _plain(self, name: str, given: Arguments) -> Value | None:
        """Return the value of a call without side effects; None: another call."""
        args = given.args
        if name in _READS_VARIABLE:
            default = args[1] if len(args) > 1 else given.keywords.get("default")
            return self.item(Ref(name=ENVIRON), args[0] if args else unknown(), default)
        if name == "builtins.super":
            return Opaque(Mark.UNKNOWN, "super")
        if name == "tensorflow.function" and not args:
            return Ref(name=name)
        function = _PURE_FUNCTIONS.get(name)
        return function(args) if function is not None and args else None

    # --- functions that are run by what is called -------------------------------------------------------------------

    def _run_what_it_runs(self, call: Call, node: ast.AST) -> None:
        kind = kind_of(call.receiver)
        first = call.args[0] if call.args else call.keywords.get("fn") or call.keywords.get("dataset_fn")
        if kind is Kind.STRATEGY and call.method in ("run", "experimental_run_v2"):
            if isinstance(first, Function):
                self._run_replica(first, call)
        elif call.name == DATASET_CREATOR or "distribute_datasets_from_function" in call.method:
            if isinstance(first, Function):
                call.returned = self.enter(first, Arguments([Opaque(meaning="input_context")]))
        elif kind is Kind.MODEL and call.method in _TRAINING:
            self._run_callbacks(call, node)
        elif call.name in _RUNS_ITS_ARGUMENT:
            main = first if first is not None else self.frame.find("main")
            if isinstance(main, Function):
                self.enter(main, _ANY)
        else:
            self._run_arguments(call.name, call, node)

    def _run_replica(self, function: Function, call: Call) -> None:
        given, named = call.argument("args", 1), call.argument("kwargs", 2)
        outer, self.replica = self.replica, True
        args = given.items if isinstance(given, Items) and given.exact else None
        keywords = named.items if isinstance(named, Table) else None
        starred = not ((args is not None or is_none(given)) and (keywords is not None or is_none(named)))
        call.returned = self.enter(function, Arguments(args or (), keywords or {}, starred))
        self.replica = outer

    def _run_callbacks(self, call: Call, node: ast.AST) -> None:
        """Run the callbacks of a training on every worker."""
        given = call.argument("callbacks", 5 if call.method == "fit" else -1)
        with self.under(self.guard("loop", node)):
            for callback in given.items if isinstance(given, Items) else []:
                functions: list[Value | None] = []
                if isinstance(callback, Instance):
                    if call.receiver is not None:
                        callback.attrs.setdefault("model", call.receiver)
                    methods = [callback.cls.find(name) for name in CALLBACK_METHODS]
                    functions = [owned(item, callback) for item in methods if isinstance(item, Function)]
                elif isinstance(callback, Made) and keras_name(callback.call.name) == "callbacks.LambdaCallback":
                    functions = [*callback.call.everything()]
                for function in functions:
                    if isinstance(function, Function):
                        self.enter(function, _ANY)

    def _run_arguments(self, name: str, given: Arguments, node: ast.AST) -> None:
        """Run the functions that are passed to an unknown function, which may call them."""
        for value in given.everything() if not _NEVER_RUNS_ITS_ARGUMENT.match(name) else ():
            if isinstance(value, Function):
                with self.under(self.guard("called", node)):
                    self.enter(value, _ANY)

    def deep(self, node: ast.AST) -> bool:
        """Return whether a function calls itself, or the calls are nested too deeply."""
        return len(self.stack) >= DEEPEST_CALLS or any(node is item for item in self.stack)

    def new_frame(self, function: Function, names: dict[str, Value]) -> Frame:
        """Return the frame for a call of `function`."""
        nodes = ast.walk(function.node)
        shared = [name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names]
        return Frame(function.frame.module, names, function.frame, frozenset(shared))


def _of_scalar(receiver: Value, name: str, marks: Mark) -> Opaque | None:
    """Return the result of a method of a constant or a value with a known meaning; None: another receiver."""
    if isinstance(receiver, Const):
        return Opaque(marks, "path" if isinstance(receiver.value, str) and receiver.value[:1] == "/" else "")
    if not isinstance(receiver, Opaque):
        return None
    if receiver.meaning == "cluster" or (receiver.meaning == "resolver" and name == "cluster_spec"):
        return Opaque(Mark.REPLICAS, "cluster")
    if receiver.meaning == "input_context":
        return Opaque(Mark.REPLICAS)
    return None if receiver.marks & Mark.UNKNOWN else Opaque(marks)


def _tf_config(args: Sequence[Value]) -> Value | None:
    """Return the value of a conversion of TF_CONFIG from or to JSON, which is TF_CONFIG again."""
    return next((item for item in options(args[0]) if conditions.meaning_of(item) == "tf_config"), None)


def _same(args: Sequence[Value]) -> Value | None:
    return args[0] if len(args) == 1 and isinstance(args[0], Const | Opaque) else None


def _iterated(args: Sequence[Value]) -> Value | None:
    return Element(args[0].marks, of=args[0]) if isinstance(args[0], Made | Element) else None


def _length(args: Sequence[Value]) -> Value | None:
    first = args[0]
    return Const(first.marks, len(first.items)) if isinstance(first, Items) and first.exact else None


def _function(args: Sequence[Value]) -> Value | None:
    return args[0] if isinstance(args[0], Function) else None


def _is_scope(value: Value | None) -> bool:
    return isinstance(value, Made) and _SCOPED.search(value.call.name) is not None


def _joined(parts: Sequence[Value]) -> Value:
    texts = [text(part) for part in parts]
    if all(item is not None for item in texts):
        return Const(union(parts), "/".join((item or "").rstrip("/") or "/" for item in texts).replace("//", "/", 1))
    head = texts[0] or ""
    return Opaque(union(parts), f"path:{head}" if head else "")


_PURE_FUNCTIONS: dict[str, Callable[[Sequence[Value]], Value | None]] = {
    **dict.fromkeys(("json.loads", "json.dumps", "ast.literal_eval", "builtins.eval"), _tf_config),
    **dict.fromkeys(("builtins.int", "builtins.str", "os.fspath", "pathlib.Path", "os.path.abspath"), _same),
    **dict.fromkeys(("builtins.iter", "builtins.enumerate", "builtins.list", "tqdm.tqdm"), _iterated),
    **dict.fromkeys(("os.path.join", "posixpath.join", "tensorflow.io.gfile.join"), _joined),
    "builtins.len": _length,
    "builtins.next": lambda args: element(args[0]),
    "tensorflow.function": _function,
}


def _result_marks(call: Call, *, seeded: bool) -> Mark:
    """Return the marks of the result of a call."""
    name = call.name
    mark = next((mark for pattern, mark in _SOURCES if pattern.match(name)), None)
    if mark is not None:
        return mark
    given = union(call.everything())
    if _PURE.match(name):
        return given
    if call.method in _AS_RECEIVER and call.receiver is not None:
        return given | call.receiver.marks
    if _CHANCE.match(name) and not seeded:
        return Mark.RANDOM
    if kind_of(call.receiver) is Kind.STRATEGY and call.method in ("run", "experimental_local_results"):
        return Mark.LOCAL | Mark.UNKNOWN
    inside = name.startswith("tensorflow.") and not _REDUCES.search(name)
    return Mark.UNKNOWN | (given & (Mark.REPLICAS | Mark.LOCAL if inside else Mark.REPLICAS))
