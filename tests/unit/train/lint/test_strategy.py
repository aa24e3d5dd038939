from __future__ import annotations

import pytest

from tests.unit.train.lint.programs import BACKUP, DATA, FIT, GANG, MODEL, READY, RESOLVER, TF, check, findings, line
from train.lint.linter import lint

MAKE = "strategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
REST = RESOLVER + DATA + MODEL + BACKUP + FIT


def test_a_correct_script_gives_no_finding() -> None:
    assert findings(READY + FIT) == []
    assert findings(READY + FIT, workers=1) == []
    assert findings(READY + FIT, workers=8, gpus=0) == []


# --- MW101: the strategy comes too late ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "early",
    [
        "x = tf.constant(1)\n",
        "x = tf.zeros((2, 2))\n",
        "v = tf.Variable(1.0)\n",
        "r = tf.random.uniform((2,))\n",
        "d = tf.data.Dataset.range(3)\n",
        "d = tf.data.Dataset.from_tensor_slices([1, 2]).batch(2)\n",
        "d = tf.data.TFRecordDataset('x')\n",
        "d = tf.data.Dataset.list_files('*.tfrecord')\n",
        "import tensorflow_datasets as tfds\nd = tfds.load('mnist')\n",
        "o = tf.keras.optimizers.Adam(0.1)\n",
        "m = tf.keras.metrics.Mean()\n",
        "from tensorflow.keras.optimizers import SGD\no = SGD(0.1)\n",
        "h = tf.keras.layers.Dense(1)(tf.keras.Input((2,)))\n",
        "print(tf.config.list_logical_devices('GPU'))\n",
        "w = tf.summary.create_file_writer('logs')\n",
        "other = tf.distribute.MirroredStrategy()\n",
        "def data():\n    return tf.data.Dataset.range(3)\nd = data()\n",
        "for i in range(3):\n    t = tf.constant(i)\n",
        "t = [tf.constant(i) for i in range(3)]\n",
        "class Data:\n    def __init__(self):\n        self.all = tf.constant(1)\ndata = Data()\n",
        "class Data:\n    all = tf.constant(1)\n",
    ],
)
def test_operations_before_the_strategy_are_reported(early: str) -> None:
    source = TF + early + MAKE + REST
    result = [item for item in check(source) if item.rule == "MW101"]
    assert [item.line for item in result] == [line(source, MAKE)]
    assert result[0].severity.value == "error"
    assert "Collective ops must be configured" in result[0].reason


@pytest.mark.parametrize(
    "early",
    [
        "tf.random.set_seed(1)\n",
        "tf.keras.utils.set_random_seed(1)\n",
        "for g in tf.config.list_physical_devices('GPU'):\n    tf.config.experimental.set_memory_growth(g, True)\n",
        "o = tf.data.Options()\n",
        "s = tf.TensorSpec((2,))\n",
        "layer = tf.keras.layers.Dense(1)\n",
        "i = tf.keras.Input((2,))\n",
        "loss = tf.keras.losses.MeanSquaredError()\n",
        "rate = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)\n",
        "y = tf.keras.utils.to_categorical([1])\n",
        "tf.io.gfile.makedirs('x')\n",
        "print(tf.__version__, tf.train.latest_checkpoint('x'))\n",
        "(a, b), _ = tf.keras.datasets.mnist.load_data()\n",
        "def data():\n    return tf.data.Dataset.range(3)\n",
        "make = lambda: tf.constant(1)\n",
        "@tf.function\ndef f():\n    return tf.constant(1)\n",
        "def fill():\n    yield tf.constant(1)\n",
        "tf.config.threading.set_intra_op_parallelism_threads(2)\n",
        "tf.keras.mixed_precision.set_global_policy('mixed_float16')\n",
        "options = tf.distribute.experimental.CommunicationOptions()\n",
    ],
)
def test_operations_that_do_not_start_the_runtime_give_no_finding(early: str) -> None:
    assert findings(TF + early + MAKE + REST) == []


def test_a_module_that_is_imported_first_starts_the_runtime() -> None:
    modules = {"data.py": "import tensorflow as tf\n\nsize = tf.constant(3)\n"}
    source = "import data\n" + TF + MAKE + REST
    result = check(source, modules=modules)
    assert [(item.rule, item.file, item.line) for item in result] == [("MW101", "task.py", 4)]
    assert "tf.constant (data.py:3)" in result[0].message
    assert check(TF + MAKE + "import data\n" + REST, modules=modules) == []


def test_a_condition_gives_a_warning_and_an_excluding_arm_no_finding() -> None:
    assert findings(TF + "if debug:\n    print(tf.constant(1))\n" + MAKE + REST) == ["MW101 warning 5"]
    assert findings(TF + "if debug:\n    t = tf.constant(1)\nelse:\n    " + MAKE) == []


# --- MW102: no strategy for several workers -----------------------------------------------------------------------

ALONE = TF + MODEL.replace("with strategy.scope():\n    ", "").replace("\n    ", "\n") + "model.fit(x, y)\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (ALONE, ["MW102 warning 5"]),
        (TF + "strategy = tf.distribute.MirroredStrategy()\n" + MODEL + "model.fit(x)\n", ["MW102 warning 3"]),
        (
            TF + "strategy = tf.distribute.OneDeviceStrategy('/gpu:0')\n" + MODEL + "model.fit(x)\n",
            ["MW102 warning 3"],
        ),
        (
            TF + "from tensorflow import keras\nm = keras.Sequential()\nm.compile('sgd')\nm.fit(x)",
            ["MW102 warning 6"],
        ),
        # no training
        (TF + "m = tf.keras.models.load_model('x')\nprint(m.predict(x))\n", []),
        (TF + "print(tf.__version__)\n", []),
        ("print('hello')\n", []),
        # another library may connect the workers
        ("import horovod.tensorflow as hvd\n" + ALONE, []),
        ("from vision import get_strategy\nstrategy = get_strategy()\n" + TF + MODEL + "model.fit(x)\n", []),
        (ALONE + "print(os.environ['TF_CONFIG'])\n", []),
        (TF + "strategy = tf.distribute.TPUStrategy(r)\n" + MODEL + "model.fit(x)\n", []),
        ("import keras\nkeras.distribution.set_distribution(d)\nm = keras.Sequential()\nm.fit(x)\n", []),
        ("import keras\nm = keras.Sequential()\nm.fit(x)\n", ["MW102 warning 3"]),
        ("from sklearn.svm import SVC\nimport tensorflow as tf\nSVC().fit(x, y)\n", []),
    ],
)
def test_separate_strategies_on_several_workers_are_reported(source: str, expected: list[str]) -> None:
    assert findings(source) == expected
    assert findings(source, workers=1) == []


def test_a_chosen_strategy_counts_as_one_for_several_workers() -> None:
    choice = "strategy = tf.distribute.MultiWorkerMirroredStrategy() if args.many else tf.distribute.get_strategy()\n"
    assert findings(TF + choice + MODEL + "model.fit(x, epochs=1)\n") == []


@pytest.mark.parametrize(
    "setting", ["os.environ['KERAS_BACKEND'] = 'jax'\n", "os.environ.setdefault('KERAS_BACKEND', 'torch')\n"]
)
def test_another_backend_of_keras_has_another_way_to_several_workers(setting: str) -> None:
    (finding,) = check(
        "import os\n" + setting + "import keras\nimport tensorflow as tf\nm = keras.Sequential()\nm.fit(x)\n"
    )
    assert finding.rule == "MW102"
    assert "keras.distribution.initialize(" in finding.fix


# --- MW111: only a task of type chief -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "reported"),
    [
        ("task_type == 'chief'", True),
        ("resolver.task_type == 'chief'", True),
        ("task_type in ('chief', 'master')", True),
        ("task_type == 'chief' or (task_type == 'worker' and task_id == 0)", False),
        ("task_id == 0", False),
        ("task_type == 'worker'", False),
    ],
)
def test_what_only_a_task_of_type_chief_does_is_reported(test: str, reported: bool) -> None:
    source = READY + FIT + f"path = 'm' if {test} else f'm/workertemp_{{task_id}}'\nmodel.save(path)\n"
    expected = ["MW111"] if reported else []
    for chief, level in ((None, "hint"), (False, "warning")):
        result = [
            item for item in lint({"task.py": source}, "task.py", workers=2, chief=chief) if item.rule == "MW111"
        ]
        assert [item.rule for item in result] == expected
        assert all(item.severity.value == level for item in result)
    assert "MW111" not in [item.rule for item in lint({"task.py": source}, "task.py", workers=2, chief=True)]


# --- MW103: TF_CONFIG ---------------------------------------------------------------------------------------------

CLUSTER = '{"cluster": {"worker": ["localhost:12345", "localhost:23456"]}, "task": {"type": "worker", "index": 0}}'


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        (f"os.environ['TF_CONFIG'] = json.dumps({CLUSTER})\n", ["error"]),
        (f"tf_config = {CLUSTER}\nos.environ['TF_CONFIG'] = json.dumps(tf_config)\n", ["error"]),
        (f"os.environ.update(TF_CONFIG=json.dumps({CLUSTER}))\n", ["error"]),
        (f"os.environ.update({{'TF_CONFIG': json.dumps({CLUSTER})}})\n", ["error"]),
        (f"os.putenv('TF_CONFIG', json.dumps({CLUSTER}))\n", ["error"]),
        ("os.environ.pop('TF_CONFIG', None)\n", ["error"]),
        ("del os.environ['TF_CONFIG']\n", ["error"]),
        (f"if args.local:\n    os.environ['TF_CONFIG'] = json.dumps({CLUSTER})\n", ["warning"]),
        ("os.environ['TF_CONFIG'] = make_config(hosts)\n", ["warning"]),
        # only if it is unset, or derived from it
        (f"if 'TF_CONFIG' not in os.environ:\n    os.environ['TF_CONFIG'] = json.dumps({CLUSTER})\n", []),
        (f"if not os.environ.get('TF_CONFIG'):\n    os.environ['TF_CONFIG'] = json.dumps({CLUSTER})\n", []),
        (f"if os.getenv('TF_CONFIG') is None:\n    os.environ['TF_CONFIG'] = json.dumps({CLUSTER})\n", []),
        (f"os.environ.setdefault('TF_CONFIG', json.dumps({CLUSTER}))\n", []),
        ("c = json.loads(os.environ['TF_CONFIG'])\nc['x'] = 1\nos.environ['TF_CONFIG'] = json.dumps(c)\n", []),
        ("print(os.environ['TF_CONFIG'])\n", []),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '-1'\n", []),
        ("config = {}\nconfig['TF_CONFIG'] = 1\n", []),
    ],
)
def test_scripts_that_set_tf_config_are_reported(piece: str, expected: list[str]) -> None:
    source = TF.replace("os", "os, json", 1) + piece + MAKE + REST
    result = check(source, adapt=False)
    assert [item.severity.value for item in result if item.rule == "MW103"] == expected
    assert len(result) == len(expected)
    removes = "pop" in piece or "del " in piece
    adapted = [item for item in check(source) if item.rule == "MW103"]
    assert [item.severity.value for item in adapted] == (expected if removes else ["hint"] * len(expected))
    assert all("gives TensorFlow the TF_CONFIG of the job" in item.reason for item in adapted if not removes)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ("int(os.environ['FLEET_RANK'])", ""),
        ("json.loads(os.environ['TF_CONFIG'])['task']['index']", ""),
        ("int(os.environ.get('PMI_RANK', 0))", "unless --no-adapt is given or PMI_RANK is set"),
    ],
)
def test_a_tf_config_that_is_computed_from_the_job_is_not_reported(index: str, reason: str) -> None:
    value = f"json.dumps({{'cluster': {{'worker': ['a:1', 'b:1']}}, 'task': {{'type': 'worker', 'index': {index}}}}})"
    source = TF.replace("os", "os, json", 1) + f"os.environ['TF_CONFIG'] = {value}\n" + MAKE + REST
    result = [item for item in check(source) if item.rule == "MW103"]
    assert [item.severity.value for item in result] == (["hint"] if reason else [])
    assert all(item.reason.endswith(reason) for item in result)


def test_a_script_that_removes_and_sets_tf_config_has_one_finding() -> None:
    piece = f"os.environ.pop('TF_CONFIG', None)\nos.environ['TF_CONFIG'] = json.dumps({CLUSTER})\n"
    assert findings(TF.replace("os", "os, json", 1) + piece + MAKE + REST) == ["MW103 hint 4"]


@pytest.mark.parametrize("removal", ["os.environ.pop('TF_CONFIG', None)\n", "del os.environ['TF_CONFIG']\n"])
def test_a_late_strategy_does_not_fail_without_tf_config(removal: str) -> None:
    early = "x = tf.constant(1)\n"
    assert findings(TF + removal + early + MAKE + REST) == ["MW103 error 3"]
    assert "MW101 error 6" in findings(TF + removal + "os.environ['TF_CONFIG'] = '{}'\n" + early + MAKE + REST)


# --- MW110: variables of other launchers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("piece", "names", "assigned"),
    [
        (
            "rank, size = int(os.environ['PMI_RANK']), int(os.environ['PMI_SIZE'])\n",
            "PMI_RANK and PMI_SIZE",
            "PMI_RANK=$FLEET_RANK PMI_SIZE=$FLEET_NUM_TASKS",
        ),
        ("rank = os.environ['OMPI_COMM_WORLD_RANK']\n", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK=$FLEET_RANK"),
        ("n = os.environ['MV2_COMM_WORLD_LOCAL_RANK']\n", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK=0"),
        ("def size():\n    return os.environ['SLURM_NTASKS']\nsize()\n", "SLURM_NTASKS", "SLURM_NTASKS=$FLEET_NUM_"),
        ("n = os.environ['SLURM_JOB_NODELIST']\n", "SLURM_JOB_NODELIST", 'SLURM_JOB_NODELIST="$(echo $FLEET_ADDR'),
        ("r = os.environ['PMIX_RANK']\n", "PMIX_RANK", "PMIX_RANK=$FLEET_RANK"),
    ],
)
def test_variables_of_other_launchers_are_named(piece: str, names: str, assigned: str) -> None:
    (finding,) = (item for item in check(TF + piece + MAKE + REST) if item.rule == "MW110")
    assert finding.severity.value == "warning"
    assert finding.fails
    assert finding.message.startswith(f"the script reads {names}, which ")
    assert f"fleet train -- bash -c '{assigned}" in finding.fix
    assert finding.fix.endswith("exec python task.py'")


@pytest.mark.parametrize(
    "piece",
    [
        "rank = int(os.environ['FLEET_RANK'])\n",
        "if 'SLURM_PROCID' in os.environ:\n    rank = int(os.environ['SLURM_PROCID'])\n",
        "try:\n    rank = int(os.environ['PMI_RANK'])\nexcept KeyError:\n    rank = 0\n",
        "os.environ['PMI_RANK'] = '0'\n",
        "print(os.environ['HOME'], os.environ['MY_RANKING'])\n",
    ],
)
def test_variables_that_the_script_does_not_need_are_not_reported(piece: str) -> None:
    assert [item for item in check(TF + piece + MAKE + REST) if item.rule == "MW110"] == []


def test_a_default_for_a_variable_of_another_launcher_is_the_same_for_all_tasks() -> None:
    (finding,) = (
        item for item in check(TF + "rank = os.environ.get('PMI_RANK', '0')\n" + MAKE + REST) if item.rule == "MW110"
    )
    assert (finding.severity.value, finding.reason) == ("warning", "all tasks take the same default")


# --- MW104: addresses in the script -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("tf.train.ClusterSpec({'worker': ['10.0.0.2:2222', '10.0.0.3:2222']})", ["MW104 error 3"]),
        ("tf.train.ClusterSpec(cluster={'chief': ['a:1'], 'worker': ['b:1']})", ["MW104 error 3"]),
        ("tf.train.ClusterSpec({'worker': hosts})", []),
        ("tf.train.ClusterSpec(json.loads(os.environ['TF_CONFIG'])['cluster'])", []),
        ("tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec()", []),
    ],
)
def test_addresses_in_the_script_are_reported(spec: str, expected: list[str]) -> None:
    resolver = "resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, 'worker', 0)\n"
    make = "strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)\n"
    source = TF.replace("os", "os, json", 1) + f"spec = {spec}\n" + resolver + make + REST
    assert findings(source) == expected
    assert findings(source, workers=1) == []


# --- MW105: NCCL without GPUs -------------------------------------------------------------------------------------

NCCL = "tf.distribute.experimental.CommunicationImplementation.NCCL"


@pytest.mark.parametrize(
    "make",
    [
        f"options = tf.distribute.experimental.CommunicationOptions(implementation={NCCL})\n"
        "strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)\n",
        "strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy("
        "tf.distribute.experimental.CollectiveCommunication.NCCL)\n",
        f"strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options="
        f"tf.distribute.experimental.CommunicationOptions(implementation={NCCL}))\n",
    ],
)
def test_nccl_without_gpus_is_reported(make: str) -> None:
    assert findings(TF + make + REST, gpus=0) == ["MW105 hint 3"]
    assert findings(TF + make + REST, gpus=1) == []
    assert findings(TF + make + REST) == []
    assert findings(TF + make.replace("NCCL", "RING") + REST, gpus=0) == []


# --- MW106: settings that come too late ---------------------------------------------------------------------------

GROWTH = "for g in tf.config.list_physical_devices('GPU'):\n    tf.config.experimental.set_memory_growth(g, True)\n"
THREADS = "tf.config.threading.set_intra_op_parallelism_threads(2)\n"


def test_settings_after_the_start_of_the_runtime_are_reported() -> None:
    late = GANG + GROWTH + REST
    assert findings(late, gpus=1) == ["MW106 error 5"]
    assert findings(late) == ["MW106 warning 5"]
    assert findings(late, gpus=0) == []
    assert findings(GANG + THREADS + REST) == ["MW106 error 4"]
    assert findings(TF + "t = tf.constant(1)\ntf.config.set_visible_devices([], 'GPU')\n", gpus=1) == [
        "MW106 error 4"
    ]


def test_settings_before_the_start_of_the_runtime_give_no_finding() -> None:
    assert findings(TF + GROWTH + THREADS + MAKE + REST, gpus=1) == []
    assert (
        findings(TF + "def setup():\n    " + GROWTH.replace("\n", "\n    ") + "\nsetup()\n" + MAKE + REST, gpus=1)
        == []
    )


# --- MW107: parameter servers -------------------------------------------------------------------------------------

PS = (
    TF
    + """\
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()
elif resolver.task_type == "evaluator":
    model = tf.keras.models.load_model(os.environ["FLEET_MODEL_DIR"])
    model.evaluate(x, steps=3)
else:
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(10).repeat().batch(64)
    model.fit(data, epochs=3, steps_per_epoch=10)
    model.save(os.environ["FLEET_MODEL_DIR"])
"""
)


def test_parameter_server_scripts_without_servers_are_reported() -> None:
    def others(source: str) -> list[str]:
        return [item for item in findings(source) if not item.startswith("MW108")]

    assert others(PS) == []
    assert others(PS.replace(", steps_per_epoch=10", "").replace(".repeat()", "")) == ["MW311 error 18"]
    alone = "resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()\n"
    alone += "strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)\n"
    assert others(TF + alone) == ["MW107 error 4"]


SIMPLE = "resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec)\n"


@pytest.mark.parametrize(
    ("source", "servers", "expected"),
    [
        (PS, None, ["hint"]),
        (PS, True, []),
        (PS, False, ["error"]),
        (PS.replace("resolver)", ")"), False, ["error"]),
        (PS.replace("strategy = ", "strategy = x and "), False, ["warning"]),  # under an unknown condition
        (TF + SIMPLE + "tf.distribute.ParameterServerStrategy(resolver)\n", False, []),  # another cluster
        (TF + "tf.distribute.MultiWorkerMirroredStrategy()\n", False, []),
    ],
)
def test_parameter_servers_without_a_chief_are_reported(
    source: str, servers: bool | None, expected: list[str]
) -> None:
    result = lint({"task.py": source}, "task.py", workers=2, servers=servers)
    assert [item.severity.value for item in result if item.rule == "MW108"] == expected


# --- MW109: Slurm --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("r = tf.distribute.cluster_resolver.SlurmClusterResolver()\n", ["MW109 warning 3"]),
        ("r = tf.distribute.cluster_resolver.SlurmClusterResolver(port_base=12345)\n", ["MW109 warning 3"]),
        (
            "if 'SLURM_JOB_ID' in os.environ:\n    r = tf.distribute.cluster_resolver.SlurmClusterResolver()\n",
            [],
        ),
        ("try:\n    r = tf.distribute.cluster_resolver.SlurmClusterResolver()\nexcept RuntimeError:\n    pass\n", []),
        ("r = mine.SlurmClusterResolver()\n", []),
    ],
)
def test_a_slurm_cluster_resolver_is_reported(source: str, expected: list[str]) -> None:
    assert [item for item in findings(TF + source) if item.startswith("MW109")] == expected
