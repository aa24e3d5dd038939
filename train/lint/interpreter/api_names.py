"""Names of TensorFlow and Keras: one spelling for each, and the kind of object that they create."""

from __future__ import annotations

import re
from enum import Enum

from train.lint.interpreter.values import Bound, Call, Either, Element, Instance, Made, Opaque, Value

_ALIASES = (
    (re.compile(r"^tensorflow\.(?:compat\.v[12]|_api\.v[12])(?=\.|$)"), "tensorflow"),
    (re.compile(r"^tensorflow\.python\.keras(?=\.|$)"), "tensorflow.keras"),
    (re.compile(r"^tensorflow\.distribute\.experimental(?=\.[A-Z])"), "tensorflow.distribute"),
    (re.compile(r"^multiprocess(?=\.|$)"), "multiprocessing"),
)
_KERAS = re.compile(r"^(?:tensorflow\.keras|tf_keras|keras)(?:\.|$)")

MULTI_WORKER = ("MultiWorkerMirroredStrategy", "CollectiveAllReduceStrategy")
PARAMETER_SERVER = ("ParameterServerStrategy", "ParameterServerStrategyV2")
SINGLE_HOST = ("MirroredStrategy", "OneDeviceStrategy", "CentralStorageStrategy")
_STRATEGIES = (*MULTI_WORKER, *PARAMETER_SERVER, *SINGLE_HOST, "TPUStrategy")

_READERS = re.compile(
    r"^tensorflow\.data\.(?:experimental\.)?(?:TFRecord|TextLine|FixedLengthRecord|Csv|Sql)Dataset$"
)
_DATASET_FUNCTIONS = re.compile(
    r"^tensorflow\.data\.(?:Dataset|TFRecordDataset|TextLineDataset|FixedLengthRecordDataset|experimental\.CsvDataset)"
    r"\.[a-z]\w*$|^tensorflow\.data\.experimental\.(?:make_csv_dataset|make_batched_features_dataset)$"
    r"|^(?:tensorflow\.keras|tf_keras|keras)\.(?:utils|preprocessing)\.\w*dataset_from_directory$"
    r"|^(?:tensorflow\.keras|tf_keras|keras)\.(?:utils|preprocessing)\.timeseries_dataset_from_array$"
)
_NO_DATASET = re.compile(r"\.(?:cardinality|reduce|as_numpy_iterator|options|save|get_single_element|__\w+__)$")
_DISTRIBUTES = re.compile(
    r"\.(?:experimental_distribute_dataset|(?:experimental_)?distribute_datasets_from_function)$"
)
DATASET = "tensorflow.data.Dataset"
DISTRIBUTED = "tensorflow.distribute.DistributedDataset"
DATASET_CREATOR = "tensorflow.keras.utils.experimental.DatasetCreator"
MODEL = "tensorflow.keras.Model"
TFDS = "tensorflow_datasets.load"
_MODEL_CLASSES = ("Model", "Sequential", "Functional", "models.Model", "models.Sequential", "models.Functional")
_MODEL_FUNCTIONS = ("models.load_model", "models.clone_model", "saving.load_model")

_STARS = {
    "models": ("Model", "Sequential", "load_model", "clone_model"),
    "layers": ("Conv2D", "Dense", "Dropout", "Embedding", "Flatten", "Input", "LSTM", "MaxPooling2D"),
    "optimizers": ("SGD", "Adam", "AdamW", "Adagrad", "Nadam", "RMSprop"),
    "callbacks": ("BackupAndRestore", "EarlyStopping", "ModelCheckpoint", "ReduceLROnPlateau", "TensorBoard"),
}


class Kind(Enum):
    """Kinds of values of TensorFlow."""

    STRATEGY = "strategy"
    RESOLVER = "resolver"
    MODEL = "model"
    LAYER = "layer"
    OPTIMIZER = "optimizer"
    METRIC = "metric"
    LOSS = "loss"
    DATASET = "dataset"
    DISTRIBUTED = "distributed"
    OTHER = "other"


_CLASSES = {DATASET: Kind.DATASET, DISTRIBUTED: Kind.DISTRIBUTED}
_GROUPS = {"optimizers": Kind.OPTIMIZER, "metrics": Kind.METRIC, "losses": Kind.LOSS}


def canonical(name: str) -> str:
    """Return the canonical spelling of a name."""
    for pattern, plain in _ALIASES:
        name = pattern.sub(plain, name)
    return name


def star_names(module: str) -> tuple[str, ...]:
    """Return the names for which a star import of a Keras module is usually written."""
    return _STARS.get(keras_name(f"{module}.").rstrip("."), ())


def keras_name(name: str) -> str:
    """Return the part after `keras.` in a name of Keras in any package; empty: another name."""
    return _KERAS.sub("", name) if _KERAS.match(name) else ""


def is_reader(name: str) -> bool:
    """Return whether `name` is a data set that reads files given by name."""
    return _READERS.match(name) is not None


def type_of(value: Value) -> str:
    """Return the full name of the class of `value`; ``?`` if unknown."""
    if isinstance(value, Made):
        return _type_made_by(value.call.name)
    if isinstance(value, Element):
        return DATASET if loaded_by(value) is not None else f"element of {type_of(value.of)}"
    if isinstance(value, Instance):
        return canonical(value.cls.outside()) or "?"
    if isinstance(value, Bound):
        return f"{type_of(value.receiver)}.{value.name}"
    if isinstance(value, Opaque) and value.meaning == "resolver":
        return "tensorflow.distribute.cluster_resolver.ClusterResolver"
    return "?"


def loaded_by(value: Value) -> Call | None:
    """Return the call of tensorflow_datasets whose result contains a value."""
    while isinstance(value, Element):
        value = value.of
    return value.call if isinstance(value, Made) and value.call.name == TFDS else None


def _type_made_by(name: str) -> str:
    last = name.rpartition(".")[2]
    part = keras_name(name)
    if name == TFDS:
        return DATASET
    if _DISTRIBUTES.search(name):
        return DISTRIBUTED
    if (_DATASET_FUNCTIONS.match(name) or is_reader(name)) and not _NO_DATASET.search(name):
        return DATASET
    if part in _MODEL_CLASSES or part in _MODEL_FUNCTIONS or part.startswith(("applications.", "models.model_from_")):
        return MODEL
    return name if last[:1].isupper() else f"{name}()"


def kind_of_type(name: str) -> Kind:
    """Return the kind of the objects of a class."""
    last = name.rpartition(".")[2]
    part = keras_name(name)
    if last in _STRATEGIES and name.startswith("tensorflow."):
        return Kind.STRATEGY
    if name in _CLASSES:
        return _CLASSES[name]
    if name.endswith("ClusterResolver"):
        return Kind.RESOLVER
    if part in _MODEL_CLASSES:
        return Kind.MODEL
    group, _, member = part.partition(".")
    if group == "layers":
        return Kind.LAYER if member and "." not in member else Kind.OTHER
    is_class = bool(member) and not part.endswith("()") and ".schedules." not in part
    return _GROUPS.get(group, Kind.OTHER) if is_class else Kind.OTHER


def kind_of(value: Value | None) -> Kind:
    """Return the kind of a value; of several alternatives only if all have the same kind."""
    if isinstance(value, Either):
        kinds = {kind_of(option) for option in value.options}
        return kinds.pop() if len(kinds) == 1 else Kind.OTHER
    return kind_of_type(type_of(value)) if value is not None else Kind.OTHER
