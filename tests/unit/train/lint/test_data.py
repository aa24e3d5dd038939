from __future__ import annotations

import pytest

from tests.unit.train.lint.programs import BACKUP, BATCH, FIT, GANG, MODEL, READY, READY_LOOP, TF, check, findings

HEAD = GANG + BATCH
TAIL = MODEL + BACKUP
SLICES = "data = tf.data.Dataset.from_tensor_slices((x, y))\n"
POLICY = "options = tf.data.Options()\noptions.experimental_distribute.auto_shard_policy = "
POLICY += "tf.data.experimental.AutoShardPolicy.{}\ndata = data.with_options(options)\n"


def rules(data: str, fit: str = FIT, workers: int = 2) -> list[str]:
    return [item.split()[0] for item in findings(HEAD + data + TAIL + fit, workers=workers)]


# --- MW301: without end -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "fit", "expected"),
    [
        (SLICES + "data = data.repeat().batch(batch)\n", FIT, ["MW301"]),
        (SLICES + "data = data.repeat(-1).batch(batch)\n", FIT, ["MW301"]),
        (SLICES + "data = data.repeat(None).batch(batch).prefetch(2)\n", FIT, ["MW301"]),
        (SLICES + "data = data.repeat().batch(batch)\n", "model.evaluate(data)\n", ["MW301"]),
        (SLICES + "data = data.repeat().batch(batch)\n", "model.predict(x=data)\n", ["MW301"]),
        (
            SLICES + "v = data.repeat().batch(batch)\ndata = data.batch(batch)\n",
            FIT.replace(")", ", validation_data=v)", 1),
            ["MW301"],
        ),
        # it ends
        (SLICES + "data = data.repeat().batch(batch)\n", FIT.replace("keep)", "keep, steps_per_epoch=9)"), []),
        (SLICES + "data = data.repeat().batch(batch)\n", FIT.replace("keep)", "keep, steps_per_epoch=n)"), []),
        (SLICES + "data = data.repeat().batch(batch)\n", FIT.replace("keep)", "keep, **more)"), []),
        (SLICES + "data = data.repeat(3).batch(batch)\n", FIT, []),
        (SLICES + "data = data.repeat(n).batch(batch)\n", FIT, []),
        (SLICES + "data = data.repeat().batch(batch).take(100)\n", FIT, []),
        (SLICES + "data = data.batch(batch)\nif long:\n    data = data.repeat()\n", FIT, []),
        (SLICES + "data = data.repeat().batch(batch).apply(bounded)\n", FIT, []),
        ("data = load()\ndata = data.repeat()\n", FIT, []),
    ],
)
def test_endless_data_is_reported(data: str, fit: str, expected: list[str]) -> None:
    assert rules(data, fit) == expected


def test_an_endless_loop_is_reported() -> None:
    head = READY_LOOP.replace(".batch(batch)", ".repeat().batch(batch)")
    assert [item.split()[0] for item in findings(head + "for batch in shared:\n    step(batch)\n")] == ["MW301"]
    assert findings(head + "for batch in shared:\n    if step(batch) is None:\n        break\n") == []
    assert findings(head + "for n, batch in zip(range(9), shared):\n    step(batch)\n") == []
    assert findings(head + "it = iter(shared)\nfor n in range(9):\n    step(next(it))\n") == []
    inside = "def epoch():\n    for batch in shared:\n        return step(batch)\nepoch()\n"
    assert findings(head + inside) == []


# --- MW302, MW303, MW304: shares ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "workers", "expected"),
    [
        ("data = tf.data.TFRecordDataset('train.tfrecord').map(parse).batch(batch)\n", 2, ["MW302"]),
        ("data = tf.data.TextLineDataset(['a.csv', 'b.csv']).batch(batch)\n", 3, ["MW302"]),
        ("files = ['a', 'b']\nfiles.append('c')\ndata = tf.data.TFRecordDataset(files).batch(batch)\n", 4, ["MW302"]),
        ("data = tf.data.TFRecordDataset('one').batch(batch)\n" + POLICY.format("FILE"), 2, ["MW302"]),
        ("data = tf.data.TFRecordDataset('one').batch(batch)\n" + POLICY.format("AUTO"), 2, ["MW302"]),
        ("import tensorflow_datasets as tfds\ndata = tfds.load('mnist', split='train').batch(batch)\n", 2, ["MW302"]),
        (
            "import tensorflow_datasets as tfds\n"
            "sets, info = tfds.load(name='mnist', with_info=True, as_supervised=True)\n"
            "data = sets['train'].map(scale).cache().shuffle(10000).batch(batch)\n",
            2,
            ["MW302"],
        ),
        # enough files, or divided in another way
        ("data = tf.data.TextLineDataset(['a.csv', 'b.csv']).batch(batch)\n", 2, []),
        ("data = tf.data.TFRecordDataset('one').batch(batch)\n" + POLICY.format("DATA"), 2, []),
        ("data = tf.data.TFRecordDataset('one').batch(batch)\n", 1, []),
        ("data = tf.data.TFRecordDataset(files).batch(batch)\n", 9, []),
        ("data = tf.data.TFRecordDataset(tf.io.gfile.glob('*.x')).batch(batch)\n", 9, []),
        (
            "files = ['a']\nfor n in m:\n    files.append(n)\ndata = tf.data.TFRecordDataset(files).batch(batch)\n",
            9,
            [],
        ),
        ("import tensorflow_datasets as tfds\ndata = tfds.load('imagenet2012', split='train').batch(batch)\n", 2, []),
        # no files
        (SLICES + "data = data.batch(batch)\n" + POLICY.format("FILE"), 2, ["MW303"]),
        ("data = tf.data.Dataset.from_generator(g, s).batch(batch)\n" + POLICY.format("FILE"), 2, ["MW303"]),
        (SLICES + "data = data.batch(batch)\n" + POLICY.format("FILE"), 1, []),
        ("data = tf.data.Dataset.from_generator(g, s).batch(batch)\n", 2, []),
        ("data = tf.data.Dataset.from_generator(g, s).batch(batch)\n" + POLICY.format("DATA"), 2, []),
        (SLICES + "data = data.interleave(tf.data.TFRecordDataset).batch(batch)\n" + POLICY.format("FILE"), 2, []),
        # not divided
        (SLICES + "data = data.batch(batch)\n" + POLICY.format("OFF"), 2, ["MW304"]),
        (SLICES + "data = data.shard(2, 0).batch(batch)\n" + POLICY.format("OFF"), 2, []),
        ("data = tf.data.Dataset.from_generator(g, s).batch(batch)\n" + POLICY.format("OFF"), 2, []),
        (
            "index = strategy.cluster_resolver.task_id\n"
            "data = tf.data.TFRecordDataset(f'part-{index}').batch(batch)\n" + POLICY.format("OFF"),
            2,
            [],
        ),
    ],
)
def test_data_that_is_not_divided_is_reported(data: str, workers: int, expected: list[str]) -> None:
    assert rules(data, workers=workers) == expected


def test_few_files_are_divided_by_elements_unless_the_script_or_the_user_decides() -> None:
    def severities(data: str, *, adapt: bool) -> list[tuple[str, bool]]:
        result = check(HEAD + data + TAIL + FIT, adapt=adapt)
        return [(item.severity.value, item.fails) for item in result if item.rule == "MW302"]

    entry = "data = tf.data.TFRecordDataset('one').batch(batch)\n"
    tfds = "import tensorflow_datasets as tfds\ndata = tfds.load('mnist', split='train').batch(batch)\n"
    assert severities(entry, adapt=True) == severities(tfds, adapt=True) == [("hint", False)]
    assert severities(entry, adapt=False) == [("error", True)]
    assert severities(tfds, adapt=False) == [("warning", True)]
    assert severities(entry + POLICY.format("FILE"), adapt=True) == [("error", True)]


def test_options_set_under_a_condition_are_unknown() -> None:
    options = POLICY.format("OFF").replace("options.exp", "if some:\n    options.exp")
    assert rules(SLICES + "data = data.batch(batch)\n" + options) == []


def test_data_distributed_by_a_function_gives_no_finding() -> None:
    function = """
def dataset_fn(context):
    size = context.get_per_replica_batch_size(batch)
    data = tf.data.TFRecordDataset('one')
    return data.shard(context.num_input_pipelines, context.input_pipeline_id).shuffle(9).repeat().batch(size)
data = strategy.distribute_datasets_from_function(dataset_fn)
"""
    assert rules(function, FIT.replace("keep)", "keep, steps_per_epoch=3)")) == []
    assert rules(function) == ["MW305"]


# --- MW305: distributed already -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "fit", "expected"),
    [
        ("data = strategy.experimental_distribute_dataset(data)\n", FIT, ["MW305"]),
        ("v = strategy.experimental_distribute_dataset(data)\n", "model.evaluate(v)\n", ["MW305"]),
        (
            "v = strategy.experimental_distribute_dataset(data)\n",
            FIT.replace("keep)", "keep, validation_data=v)"),
            ["MW305"],
        ),
        (
            "v = strategy.experimental_distribute_dataset(data)\n",
            FIT.replace("keep)", "keep, validation_data=v, validation_steps=3)"),
            [],
        ),
        ("", FIT, []),
    ],
)
def test_data_that_is_distributed_already_is_reported(data: str, fit: str, expected: list[str]) -> None:
    assert rules(SLICES + "data = data.batch(batch)\n" + data, fit) == expected


# --- MW306: it runs out -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "fit", "expected"),
    [
        ("", "model.fit(data, epochs=3, steps_per_epoch=9, callbacks=keep)\n", ["MW306"]),
        ("", "model.fit(data, epochs=n, steps_per_epoch=9, callbacks=keep)\n", ["MW306"]),
        ("data = data.repeat()\n", "model.fit(data, epochs=3, steps_per_epoch=9, callbacks=keep)\n", []),
        ("", "model.fit(data, epochs=1, steps_per_epoch=9, callbacks=keep)\n", []),
        ("", "model.fit(data, epochs=3, callbacks=keep)\n", []),
        ("", "model.fit(data, epochs=3, steps_per_epoch=len(x) // batch, callbacks=keep)\n", []),
        ("", "model.fit(data, epochs=3, steps_per_epoch=None, callbacks=keep)\n", []),
        ("data = prepared(data)\n", "model.fit(data, epochs=3, steps_per_epoch=9, callbacks=keep)\n", []),
    ],
)
def test_data_that_runs_out_is_reported(data: str, fit: str, expected: list[str]) -> None:
    assert rules(SLICES + data + "data = data.batch(batch)\n", fit) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("tf.data.Dataset.from_tensor_slices((x, y)).batch(8)", ["MW306"]),
        ("tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(8)", []),
        ("prepared(context)", []),
    ],
)
def test_data_of_parameter_servers_that_runs_out_is_reported(data: str, expected: list[str]) -> None:
    source = (
        "import tensorflow as tf\nresolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()\n"
        'if resolver.task_type in ("worker", "ps"):\n'
        "    tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type).join()\n"
        f"strategy = tf.distribute.ParameterServerStrategy(resolver)\n{MODEL}"
        f"data = tf.keras.utils.experimental.DatasetCreator(lambda context: {data})\n"
        "model.fit(data, epochs=3, steps_per_epoch=40)\n"
    )
    result = [finding for finding in check(source) if finding.rule == "MW306"]
    assert [finding.rule for finding in result] == expected
    assert all("OutOfRangeError" in finding.reason for finding in result)


# --- MW307, MW308: as many workers as there are -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("64", ["MW307"]),
        ("BATCH_SIZE", ["MW307"]),
        ("args.batch_size", ["MW307"]),
        ("32 * 2", ["MW307"]),
        ("64 * strategy.num_replicas_in_sync", []),
        ("args.batch_size * strategy.num_replicas_in_sync", []),
        ("64 * len(json.loads(os.environ['TF_CONFIG'])['cluster']['worker'])", []),
        ("64 * int(os.environ['FLEET_NUM_TASKS'])", []),
        ("GLOBAL_BATCH_SIZE", []),
        ("args.global_batch_size", []),
        ("int(args.world_size)", []),
        ("args.batch_size * args.num_workers", []),
        ("config.size", []),
        ("size()", []),
    ],
)
def test_a_constant_batch_size_is_a_hint(size: str, expected: list[str]) -> None:
    names = "import argparse, json\nargs = argparse.ArgumentParser().parse_args()\nBATCH_SIZE = 32\n"
    source = GANG + names + "GLOBAL_BATCH_SIZE = 256\n" + SLICES + f"data = data.batch({size})\n" + TAIL + FIT
    assert [item.split()[0] for item in findings(source)] == expected
    fit = f"model.fit(x, y, batch_size={size}, epochs=3, callbacks=keep)\n"
    arrays = GANG + names + "GLOBAL_BATCH_SIZE = 256\n" + TAIL + fit
    assert [item.split()[0] for item in findings(arrays)] == expected


def test_a_batch_size_with_one_worker_gives_no_finding() -> None:
    assert findings(GANG + SLICES + "data = data.batch(64)\n" + TAIL + FIT, workers=1) == []
    alone = TF + "strategy = tf.distribute.MirroredStrategy()\n" + SLICES + "data = data.batch(64)\n" + TAIL + FIT
    assert [item.split()[0] for item in findings(alone)] == ["MW102"]


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("tf.keras.optimizers.SGD(learning_rate=0.001)", ["MW308"]),
        ("tf.keras.optimizers.SGD(0.001, momentum=0.9)", ["MW308"]),
        ("tf.keras.optimizers.SGD()", ["MW308"]),
        ("tf.keras.optimizers.SGD(0.001 * strategy.num_replicas_in_sync)", []),
        ("tf.keras.optimizers.SGD(schedule)", []),
        ("tf.keras.optimizers.Adam(0.001)", []),
        ("'sgd'", []),
    ],
)
def test_a_constant_learning_rate_is_a_hint(optimizer: str, expected: list[str]) -> None:
    model = MODEL.replace('"adam"', optimizer)
    assert [
        i.split()[0] for i in findings(HEAD + SLICES + "data = data.batch(batch)\n" + model + BACKUP + FIT)
    ] == expected
    constant = HEAD + SLICES + "data = data.batch(64)\n" + model + BACKUP + FIT
    assert [i.split()[0] for i in findings(constant)] == ["MW307"]


# --- MW309, MW310: everyone's own part ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("data = data.shuffle(99).shard(2, index)\n", ["MW309"]),
        ("data = data.shuffle(99).map(f).shard(2, index).batch(8)\n", ["MW309"]),
        ("data = tf.data.Dataset.list_files('*.x').shard(2, index)\n", ["MW309"]),
        ("data = data.shard(2, index).shuffle(99)\n", []),
        ("data = data.shuffle(99, seed=1).shard(2, index)\n", []),
        ("data = data.shuffle(99, 1).shard(2, index)\n", []),
        ("data = tf.data.Dataset.list_files('*.x', shuffle=False).shard(2, index)\n", []),
        ("data = tf.data.Dataset.list_files('*.x', seed=1).shard(2, index)\n", []),
        ("tf.random.set_seed(7)\ndata = data.shuffle(99).shard(2, index)\n", []),
        ("data = data.shuffle(99)\n", []),
    ],
)
def test_shuffle_before_shard_is_reported(data: str, expected: list[str]) -> None:
    assert [item.split()[0] for item in findings(GANG + SLICES + data)] == expected


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        ("for batch in data:\n    step(batch)\n", ["MW310"]),
        ("it = iter(data)\nfor n in range(9):\n    step(next(it))\n", ["MW310"]),
        ("for n, batch in enumerate(data):\n    step(batch)\n", ["MW310"]),
        ("for batch in shared:\n    step(batch)\n", []),
        ("it = iter(shared)\nfor n in range(9):\n    step(next(it))\n", []),
        ("for batch in data.shard(2, task_id):\n    step(batch)\n", []),
        ("for batch in batches():\n    step(batch)\n", []),
    ],
)
def test_undistributed_batches_for_strategy_run_are_reported(loop: str, expected: list[str]) -> None:
    assert [item.split()[0] for item in findings(READY_LOOP + loop)] == expected


def test_numpy_arrays_are_divided_automatically() -> None:
    assert findings(READY + "model.fit(x, y, batch_size=batch, epochs=2, callbacks=keep)\n") == []


def test_only_the_batch_of_training_should_grow() -> None:
    data = "data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch)\n"
    small = "small = tf.data.Dataset.from_tensor_slices((x, y)).batch({})\n"
    for number, use, expected in (
        (8, "model.fit(small, epochs=1)\n", ["MW307"]),
        (1, "model.fit(small, epochs=1)\n", []),
        (8, "model.evaluate(small)\n", []),
        (8, "model.predict(small)\n", []),
        (8, "model.fit(data, validation_data=small)\n", []),
    ):
        assert rules(data + small.format(number), use) == expected, (number, use)
