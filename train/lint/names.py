"""Names of TensorFlow and Keras: one spelling for each, and the kinds of the objects that they create."""

from __future__ import annotations

import re

from train.lint.values import Mark, Value
from train.script.launchers import COUNT, INDEX

STRATEGY, RESOLVER, MODEL, LAYER, OPTIMIZER = "strategy", "resolver", "model", "layer", "optimizer"
METRIC, LOSS, DATASET, DISTRIBUTED = "metric", "loss", "dataset", "distributed"
"""Kinds of objects."""
MULTI_WORKER = ("MultiWorkerMirroredStrategy", "CollectiveAllReduceStrategy")
PARAMETER_SERVER = ("ParameterServerStrategy", "ParameterServerStrategyV2")
SINGLE_HOST = ("MirroredStrategy", "OneDeviceStrategy", "CentralStorageStrategy")
DATASET_CREATOR = "tensorflow.keras.utils.experimental.DatasetCreator"
TFDS = "tensorflow_datasets.load"

_ALIASES = (
    (re.compile(r"^tensorflow\.(?:compat\.v[12]|_api\.v[12])(?=\.|$)"), "tensorflow"),
    (re.compile(r"^tensorflow\.python\.keras(?=\.|$)"), "tensorflow.keras"),
    (re.compile(r"^tensorflow\.distribute\.experimental(?=\.[A-Z])"), "tensorflow.distribute"),
    (re.compile(r"^multiprocess(?=\.|$)"), "multiprocessing"),
)
_KERAS = re.compile(r"^(?:tensorflow\.keras|tf_keras|keras)\.")
_READERS = re.compile(
    r"^tensorflow\.data\.(?:experimental\.)?(?:TFRecord|TextLine|FixedLengthRecord|Csv|Sql)Dataset$"
)
_DATASETS = re.compile(
    r"^tensorflow\.data\.(?:\w*Dataset|experimental\.CsvDataset)\."
    r"(?!cardinality|reduce|as_numpy_iterator|options|save|get_single_element)[a-z]\w*$"
    r"|^tensorflow\.data\.experimental\.(?:make_csv_dataset|make_batched_features_dataset)$|^tensorflow_datasets\.load$"
    r"|^(?:tensorflow\.keras|tf_keras|keras)\.(?:utils|preprocessing)\."
    r"(?:\w*dataset_from_directory|timeseries_dataset_from_array)$"
)
_DISTRIBUTES = re.compile(
    r"\.(?:experimental_distribute_dataset|(?:experimental_)?distribute_datasets_from_function)$"
)
_MODELS = re.compile(
    r"^(?:models\.)?(?:Model|Sequential|Functional)$|^models\.(?:load_model|clone_model|model_from_\w+)$"
    r"|^saving\.load_model$|^applications\."
)
_KERAS_CLASS = re.compile(r"^(layer|optimizer|metric|loss)(?:es|s)\.(?!.*\bschedules\.)(?:\w+\.)?[A-Z]\w*$")

# Names of options for a number of workers, or for a number of all workers together.
_ALL_WORKERS = re.compile(
    r"global|world_?size|^(?:n|num|number_of)_?(?:workers|nodes|replicas|tasks|hosts|machines)$"
)
_MEANINGS = (
    (r"os\.environ\[TF_CONFIG\]$", "tf_config", Mark.NONE),
    (r"os\.environ\[TF_CONFIG\]\[cluster\]|.*esolver\.cluster_spec", "cluster", Mark.REPLICAS),
    (r"os\.environ\[TF_CONFIG\]\[task\]$", "task", Mark.ROLE),
    (
        r"os\.environ\[TF_CONFIG\]\[task\]\[type\]$|.*esolver\.task_type$|os\.environ\[FLEET_TASK_TYPE\]$",
        "type",
        Mark.ROLE,
    ),
    (
        r"os\.environ\[TF_CONFIG\]\[task\]\[index\]$|.*esolver\.task_id$|.*Strategy\.extended\.worker_index$"
        rf"|input_context\.input_pipeline_id$|os\.environ\[(?:{'|'.join(INDEX)}|FLEET_RANK|FLEET_TASK_INDEX)\]$",
        "index",
        Mark.ROLE,
    ),
    (r".*Strategy\.extended\.should_(?:checkpoint|save_summary)$", "chief", Mark.ROLE),
    (r".*Strategy\.cluster_resolver$", RESOLVER, Mark.NONE),
    (
        rf".*Strategy\.num_replicas_in_sync$|input_context\."
        rf"|os\.environ\[(?:{'|'.join(COUNT)}|FLEET_NUM_TASKS|FLEET_ADDRESSES)\]$",
        "",
        Mark.REPLICAS,
    ),
    (r"os\.environ\[(?:(?:FLEET|AIP)_MODEL|FLEET_LOG|AIP_TENSORBOARD_LOG)_DIR\]$", "", Mark.GIVEN | Mark.TASK_PATH),
    (
        r"os\.environ\[HOSTNAME\]$|(?:socket\.(?:gethostname|getfqdn)|os\.(?:getpid|uname)|platform\.(?:node|uname))\(\)$",
        "",
        Mark.HOST,
    ),
    (r"os\.environ\[|sys\.argv$|(?:absl|tensorflow(?:\.app)?)\.flags\.FLAGS\.", "", Mark.GIVEN),
    (
        r"(?:time\.(?:time|monotonic|perf_counter|process_time|strftime|localtime|ctime)(?:_ns)?"
        r"|datetime\.(?:datetime|date)\.(?:now|utcnow|today)|tensorflow\.timestamp)\(\)$",
        "",
        Mark.TIME,
    ),
    (
        r"(?:(?:random|numpy\.random)\.(?!seed|default_rng|Random|RandomState|SystemRandom)\w+"
        r"|uuid\.uuid[14]|secrets\.\w+|os\.urandom)\(\)$",
        "",
        Mark.RANDOM,
    ),
    (
        r"(?:tempfile\.(?:mkdtemp|TemporaryDirectory|mkstemp|NamedTemporaryFile)|multiprocessing\.util\.get_temp_dir)\(\)$",
        "",
        Mark.TEMPORARY,
    ),
)
"""Beginnings of names, the meaning of their values for the task, and what these depend on."""
_BY_NAME = [(re.compile(pattern), meaning, marks) for pattern, meaning, marks in _MEANINGS]


def canonical(name: str) -> str:
    """Return the canonical spelling of a name."""
    for pattern, plain in _ALIASES:
        name = pattern.sub(plain, name)
    return name


def keras_name(name: str) -> str:
    """Return the part after `keras.` in a name of Keras in any package; empty: another name."""
    return _KERAS.sub("", name) if _KERAS.match(name) else ""


def is_reader(name: str) -> bool:
    """Return whether a name is that of a data set that reads files given by name."""
    return _READERS.match(name) is not None


def shown(name: str) -> str:
    """Return a full name with the usual alias of its package."""
    return re.sub(r"^tensorflow(?=\.)", "tf", name).replace(".__call__", "").removeprefix("builtins.")


def kind_made_by(name: str) -> str:
    """Return the kind of the result of a function or class; empty: another one."""
    part, last = keras_name(name), name.rpartition(".")[2]
    if name.startswith("tensorflow.") and last in (*MULTI_WORKER, *PARAMETER_SERVER, *SINGLE_HOST, "TPUStrategy"):
        return STRATEGY
    if _DISTRIBUTES.search(name):
        return DISTRIBUTED
    if _DATASETS.match(name) or is_reader(name):
        return DATASET
    if _MODELS.match(part):
        return MODEL
    match = _KERAS_CLASS.match(part)
    return match[1] if match else RESOLVER if last.endswith("ClusterResolver") else ""


def class_made_by(name: str) -> str:
    """Return the full name of the class of the result of a function or class."""
    classes = {MODEL: "tensorflow.keras.Model", DATASET: "tensorflow.data.Dataset", DISTRIBUTED: "DistributedDataset"}
    return classes.get(kind_made_by(name)) or (name if name.rpartition(".")[2][:1].isupper() else f"{name}()")


def kind_of(value: Value | None) -> str:
    """Return the kind of an object; empty: another one."""
    if value is not None and value.call is not None:
        return kind_made_by(value.call.name)
    return RESOLVER if value is not None and value.meaning == RESOLVER else ""


def meaning_of_name(name: str, marks: Mark = Mark.NONE) -> tuple[str, Mark]:
    """Return the meaning of a value for the task, and what it depends on: on `marks` if the name is not listed."""
    meaning, marks = next(((listed, to) for pattern, listed, to in _BY_NAME if pattern.match(name)), ("", marks))
    is_shared = _ALL_WORKERS.search(name.rpartition(".")[2].lower()) is not None
    return meaning, marks | Mark.REPLICAS if is_shared else marks
