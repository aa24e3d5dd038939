from __future__ import annotations

import pytest

from tests.unit.train.lint.programs import DATA, FIT, GANG, LOOP, MODEL, READY, READY_LOOP, TF, check, findings

TRAINED = READY + FIT
CHIEF = "is_chief = task_type == 'chief' or (task_type == 'worker' and task_id == 0)\n"


def rules(source: str) -> list[str]:
    return [item.rule for item in check(source)]


# --- MW401: only some save ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "save",
    [
        "if is_chief:\n    model.save('m')\n",
        "if is_chief:\n    model.save_weights('m.h5')\n",
        "if task_id == 0:\n    model.save('m')\n",
        "if not task_id:\n    model.save('m')\n",
        "if task_id != 0:\n    model.save('m')\n",
        "if task_id > 0:\n    pass\nelse:\n    model.save('m')\n",
        "if is_chief:\n    tf.saved_model.save(model, 'm')\n",
        "is_chief and model.save('m')\n",
        "if strategy.extended.should_checkpoint:\n    model.save('m')\n",
        "if json.loads(os.environ['TF_CONFIG'])['task']['index'] == 0:\n    model.save('m')\n",
        "config = json.loads(os.environ.get('TF_CONFIG', '{}'))\ntask = config.get('task', {})\n"
        "if task.get('index', 0) == 0:\n    model.save('m')\n",
        "if os.environ['FLEET_RANK'] == '0':\n    model.save('m')\n",
        "def export():\n    if is_chief:\n        model.save('m')\nexport()\n",
        "def chief():\n    return task_id == 0\nif chief():\n    model.save('m')\n",
        "def chief(kind, index):\n    if kind == 'chief':\n        return True\n    return index == 0\n"
        "if chief(task_type, task_id):\n    model.save('m')\n",
        "if not is_chief:\n    os._exit(0)\nmodel.save('m')\n",
        "def quit_unless_chief():\n    if task_id:\n        sys.exit(0)\nquit_unless_chief()\nmodel.save('m')\n",
        "def finish():\n    if not is_chief:\n        return\n    model.save('m')\nfinish()\n",
    ],
)
def test_saving_on_some_workers_is_reported(save: str) -> None:
    source = TRAINED.replace("import os", "import json, os, sys", 1) + CHIEF + save
    result = [item for item in check(source) if item.rule == "MW401"]
    assert [item.severity.value for item in result] == ["error"]
    assert "save" in source.splitlines()[result[0].line - 1]


@pytest.mark.parametrize(
    "save",
    [
        "path = 'm' if is_chief else f'm/workertemp_{task_id}'\nmodel.save(path)\n",
        "if is_chief:\n    model.save('m')\nelse:\n    model.save('/tmp/m')\n",
        "if is_chief:\n    path = 'm'\nelse:\n    path = '/tmp/m'\nmodel.save(path)\n",
        "model.save(where(task_id))\nif not is_chief:\n    tf.io.gfile.rmtree('x')\n",
        "if is_chief:\n    print('done')\n    model.summary()\n",
        "if is_chief:\n    np.save('history.npy', x)\n",
        "if task_type == 'evaluator':\n    model.save('m' + str(task_id))\n",
        "if 'TF_CONFIG' in os.environ:\n    model.save(f'm{task_id}')\n",
        "if task_type is not None:\n    model.save(f'm{task_id}')\n",
        "if task_type == 'worker':\n    model.save(f'm{task_id}')\n",
        "copy = tf.keras.models.load_model('m')\nif is_chief:\n    copy.save('n')\n",
    ],
)
def test_saving_on_all_or_unknown_workers_gives_no_finding(save: str) -> None:
    assert rules(TRAINED + CHIEF + save) == []


def test_saving_only_on_the_chief_in_a_callback_is_reported() -> None:
    callback = """
class Keep(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if task_id == 0:
            self.model.save("m")
"""
    assert rules(READY + callback + FIT.replace("keep", "keep + [Keep()]")) == ["MW401"]
    for name in ("keep", "[Keep(), *keep]"):
        expected = [] if name == "keep" else ["MW401"]
        assert rules(READY + callback + FIT.replace("keep", name)) == expected
    where = callback.replace('self.model.save("m")', "print(epoch)")
    assert rules(READY + where + FIT.replace("keep", "keep + [Keep()]")) == []


def test_saving_a_checkpoint_only_on_the_chief_is_reported() -> None:
    held = "checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)\n"
    manager = "manager = tf.train.CheckpointManager(checkpoint, f'{d}/{task_id}', 1)\n"
    loop = "for batch in shared:\n    step(batch)\n"
    for save in ("checkpoint.save(f'{d}/{task_id}')", "checkpoint.write(f'{d}/{task_id}')", "manager.save()"):
        source = READY_LOOP + held + manager + loop
        assert rules(source + f"    if task_id == 0:\n        {save}\n") == ["MW401"]
        assert rules(source + f"    {save}\n") == []


def test_parameter_servers_save_on_the_chief() -> None:
    source = (
        TF
        + """
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    tf.distribute.Server(resolver.cluster_spec()).join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    model = tf.keras.Sequential()
    model.compile("sgd")
if resolver.task_id == 0:
    model.save("m")
"""
    )
    assert findings(source) == ["MW108 hint 7"]


# --- MW402: one path ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("save", "expected"),
    [
        ("model.save('m')\n", ["MW402"]),
        ("model.save(filepath='gs://bucket/m')\n", ["MW402"]),
        ("model.save(args.directory)\n", ["MW402"]),
        ("model.save(os.path.join(args.directory, 'm'))\n", ["MW402"]),
        ("model.save(os.environ['MODEL_DIR'])\n", ["MW402"]),
        ("model.save(os.environ['FLEET_CHECKPOINT_DIR'])\n", ["MW402"]),
        ("model.save(os.environ['FLEET_MODEL_DIR'])\n", []),
        ("model.save(os.path.join(os.environ.get('FLEET_MODEL_DIR', 'model'), 'digits.keras'))\n", []),
        ("model.save(os.environ['AIP_MODEL_DIR'])\n", []),
        ("model.save_weights('m.h5')\n", ["MW402"]),
        ("tf.saved_model.save(model, 'm')\n", ["MW402"]),
        ("model.save(f'm-{task_id}')\n", []),
        ("model.save(os.path.join('m', str(task_id)))\n", []),
        ("model.save(f'm-{socket.gethostname()}')\n", []),
        ("model.save(tempfile.mkdtemp())\n", []),
        ("model.save(path_for_me())\n", []),
        ("model.save(f'{somewhere.directory}/m')\n", []),
        ("model.save(os.path.join('m', os.environ['FLEET_RANK']))\n", []),
    ],
)
def test_one_path_for_all_workers_is_reported(save: str, expected: list[str]) -> None:
    names = "import argparse, os, socket, tempfile\nargs = argparse.ArgumentParser().parse_args()\n"
    source = TRAINED + names + save
    assert rules(source) == expected
    assert [item.rule for item in check(source, workers=1)] == []


# --- MW403, MW404: directories
# ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        ("tempfile.mkdtemp()", ["MW403"]),
        ("os.path.join(tempfile.mkdtemp(), 'ckpt')", ["MW403"]),
        ("os.path.join(util.get_temp_dir(), 'ckpt')", ["MW403"]),
        ("tempfile.TemporaryDirectory().name", ["MW403"]),
        ("'/home/me/backup'", ["MW403"]),
        ("os.path.join('/home/me', name)", ["MW403"]),
        ("'~/backup'", ["MW403"]),
        ("r'C:\\\\backup'", ["MW403"]),
        ("'/tmp/backup'", ["MW404"]),
        ("'backup'", ["MW404"]),
        ("pathlib.Path('backup')", ["MW404"]),
        ("'gs://bucket/backup'", []),
        ("os.environ['FLEET_CHECKPOINT_DIR']", []),
        ("os.environ.get('AIP_CHECKPOINT_DIR', 'backup')", []),
        ("os.environ.get('AIP_CHECKPOINT_DIR') or 'backup'", []),
        ("args.backup", []),
        ("where()", []),
    ],
)
def test_checkpoint_directories_unknown_to_fleet_are_reported(directory: str, expected: list[str]) -> None:
    names = "import argparse, pathlib, tempfile\nfrom multiprocessing import util\n"
    names += "args = argparse.ArgumentParser().parse_args()\n"
    fit = f"model.fit(data, epochs=3, callbacks=[tf.keras.callbacks.BackupAndRestore({directory})])\n"
    assert rules(READY + names + fit) == expected
    held = "checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)\n"
    manager = f"manager = tf.train.CheckpointManager(checkpoint, {directory}, max_to_keep=1)\n"
    assert rules(READY_LOOP + names + held + manager) == expected


# --- MW405: no checkpoints ---------------------------------------------------------------------------------------


CUSTOM = "class Custom(tf.keras.callbacks.{}):\n    def on_epoch_end(self, epoch, logs=None):\n        {}\n"
CUSTOM_FIT = "model.fit(data, epochs=3, callbacks=[Custom()])\n"


@pytest.mark.parametrize(
    ("custom", "message"),
    [
        (CUSTOM.format("Callback", "print(epoch)"), "the script saves no checkpoint to continue from"),
        (
            CUSTOM.format("Callback", "self.model.save_weights('w')"),
            "a callback saves checkpoints, and the script does not",
        ),
        (CUSTOM.format("BackupAndRestore", "print(epoch)"), ""),
        (CUSTOM.format("Callback", "self.model.load_weights('w')"), ""),
    ],
)
def test_a_callback_of_a_class_of_the_script_restores_only_what_it_loads(custom: str, message: str) -> None:
    result = [item.message for item in check(GANG + DATA + custom + MODEL + CUSTOM_FIT) if item.rule == "MW405"]
    assert [text[: len(message)] for text in result] == ([message] if message else [])


@pytest.mark.parametrize(
    ("fit", "expected"),
    [
        ("model.fit(data, epochs=3)\n", ["MW405"]),
        ("model.fit(data, epochs=n, callbacks=[])\n", ["MW405"]),
        ("model.fit(data, epochs=3, callbacks=[tf.keras.callbacks.EarlyStopping()])\n", ["MW405"]),
        ("model.fit(data, epochs=1)\n", []),
        ("model.fit(data)\n", []),
        ("model.fit(data, epochs=3, callbacks=mine)\n", []),
        ("model.fit(data, epochs=3, callbacks=[Mine()])\n", []),
        ("model.fit(data, epochs=3, callbacks=[tf.keras.callbacks.ModelCheckpoint('m')])\n", ["MW405"]),
        ("model.fit(data, epochs=3, **more)\n", []),
        ("model.load_weights('w')\nmodel.fit(data, epochs=3)\n", []),
        ("c = []\nif keep_it:\n    c.append(backup)\nmodel.fit(data, epochs=3, callbacks=c)\n", []),
    ],
)
def test_training_without_checkpoints_is_reported(fit: str, expected: list[str]) -> None:
    assert rules(GANG + DATA + MODEL + fit) == expected


# --- MW406, MW407: contents of a checkpoint ------------------------------------------------------------------------

COUNTED = """
epoch = tf.Variable(0)
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch)
manager = tf.train.CheckpointManager(checkpoint, os.environ["FLEET_CHECKPOINT_DIR"] + str(task_id), max_to_keep=1)
while epoch < 3:
    for batch in shared:
        step(batch)
"""


def test_a_checkpoint_without_the_optimizer_is_reported() -> None:
    held = "checkpoint = tf.train.Checkpoint({})\n"
    loop = "for batch in shared:\n    step(batch)\n"
    for inside, expected in (
        ("model=model", ["MW406"]),
        ("model=model, epoch=tf.Variable(0)", ["MW406"]),
        ("model=model, optimizer=optimizer", []),
        ("model, optimizer", []),
        ("model=model, rest=rest()", []),
        ("model=model, state=state", []),
        ("model=model, **more", []),
    ):
        assert rules(READY_LOOP + held.format(inside) + loop) == expected, inside
    assert rules(READY + held.format("model=model") + FIT) == []  # a compiled model has an optimizer


def test_a_counter_updated_after_the_checkpoint_is_reported() -> None:
    late = READY_LOOP + COUNTED + "    manager.save()\n    epoch.assign_add(1)\n"
    assert findings(late) == [f"MW407 warning {late[: late.index('    manager.save')].count(chr(10)) + 1}"]
    assert rules(READY_LOOP + COUNTED + "    epoch.assign_add(1)\n    manager.save()\n") == []
    direct = (
        COUNTED + "    checkpoint.save(os.environ['FLEET_CHECKPOINT_DIR'] + str(task_id))\n    epoch.assign_add(1)\n"
    )
    assert rules(READY_LOOP + direct) == ["MW407"]
    other = COUNTED.replace(", epoch=epoch", "") + "    manager.save()\n    epoch.assign_add(1)\n"
    assert rules(READY_LOOP + other) == []
    assert "MW407" not in rules(READY_LOOP + LOOP)
