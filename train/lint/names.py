"""Names of TensorFlow and Keras: one spelling for each, and the kinds of the objects that they create."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache, reduce
from operator import or_
from pathlib import Path
from typing import Any

from train.lint.values import Mark, Value
from train.script import parse_toml
from train.script.arguments import COUNT, INDEX

MULTI_WORKER = ("MultiWorkerMirroredStrategy", "CollectiveAllReduceStrategy")
PARAMETER_SERVER = ("ParameterServerStrategy", "ParameterServerStrategyV2")
SINGLE_HOST = ("MirroredStrategy", "OneDeviceStrategy", "CentralStorageStrategy")
TFDS = "tensorflow_datasets.load"
_CLASSES = {
    "model": "tensorflow.keras.Model",
    "dataset": "tensorflow.data.Dataset",
    "distributed": "DistributedDataset",
}

# Names of options for a number of workers, or for a number of all workers together.
_ALL_WORKERS = re.compile(
    r"global|world_?size|^(?:n|num|number_of)_?(?:workers|nodes|replicas|tasks|hosts|machines)$"
)
_KERAS = re.compile(r"(?:tensorflow\.keras|tf_keras|keras)\.")


def read_table(file: str) -> dict[str, Any]:
    """Return the content of a TOML file of this package."""
    return parse_toml(Path(__file__).with_name(file).read_text(encoding="utf-8"))


def _pattern(patterns: Iterable[str]) -> re.Pattern[str]:
    parts = {"{keras}": _KERAS.pattern, "{index}": "|".join(INDEX), "{count}": "|".join(COUNT)}
    return re.compile(re.sub(r"\{[a-z]+\}", lambda part: parts[part[0]], "|".join(patterns)))


_NAMES = read_table("names.toml")
_ALIASES = [(re.compile(f"^{pattern}"), plain) for pattern, plain in _NAMES["aliases"].items()]
_KINDS = [(kind, _pattern(patterns)) for kind, patterns in _NAMES["kinds"].items()]
_GROUPS = {group: _pattern(patterns) for group, patterns in _NAMES["groups"].items()}
_VALUES: list[tuple[re.Pattern[str], str, list[Mark]]] = [
    (_pattern(row["names"]), row.get("meaning", ""), [Mark[mark] for mark in row.get("marks", [])])
    for row in _NAMES["values"]
]


def canonical(name: str) -> str:
    """Return the canonical spelling of a name."""
    for pattern, plain in _ALIASES:
        name = pattern.sub(plain, name)
    return name


def is_in(group: str, name: str) -> bool:
    """Return whether a name is in a group of names.toml."""
    return _GROUPS[group].match(name) is not None


def keras_name(name: str) -> str:
    """Return the part after `keras.` in a name of Keras in any package; empty: another name."""
    match = _KERAS.match(name)
    return name[match.end() :] if match else ""


def shown(name: str) -> str:
    """Return a full name with the usual alias of its package."""
    return re.sub(r"^tensorflow(?=\.)", "tf", name).replace(".__call__", "").removeprefix("builtins.")


@lru_cache(maxsize=4096)
def kind_made_by(name: str) -> str:
    """Return the kind of the result of a function or class; empty: another one."""
    return next((kind for kind, pattern in _KINDS if pattern.match(name)), "")


def class_made_by(name: str) -> str:
    """Return the full name of the class of the result of a function or class."""
    return _CLASSES.get(kind_made_by(name)) or (name if name.rpartition(".")[2][:1].isupper() else f"{name}()")


def kind_of(value: Value) -> str:
    """Return the kind of an object; empty: another one."""
    return kind_made_by(value.call.name) if value.call else "resolver" if value.meaning == "resolver" else ""


def meaning_of_name(name: str, marks: Mark = Mark.NONE) -> tuple[str, Mark]:
    """Return the meaning of a value for the task, and what it depends on: on `marks` if the name is not listed."""
    listed = ((meaning, depends) for pattern, meaning, depends in _VALUES if pattern.match(name))
    meaning, depends = next(listed, ("", [marks]))
    result = reduce(or_, depends, Mark.NONE)
    is_shared = _ALL_WORKERS.search(name.rpartition(".")[2].lower()) is not None
    return meaning, result | Mark.REPLICAS if is_shared else result
