"""Parts of scripts, and the linter's findings in them."""

from __future__ import annotations

from collections.abc import Mapping

from train.lint.finding import Finding
from train.lint.linter import lint

TF = "import os\nimport tensorflow as tf\n"
GANG = TF + "strategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
RESOLVER = "resolver = strategy.cluster_resolver\ntask_type, task_id = resolver.task_type, resolver.task_id\n"
BATCH = "batch = 64 * strategy.num_replicas_in_sync\n"
DATA = BATCH + "data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch)\n"
MODEL = """\
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(10)])
    model.compile(optimizer="adam", loss="mse", metrics=["accuracy"])
"""
BACKUP = 'keep = [tf.keras.callbacks.BackupAndRestore(os.environ["FLEET_CHECKPOINT_DIR"])]\n'
READY = GANG + RESOLVER + DATA + MODEL + BACKUP
"""A script that is right up to its call of `fit`."""
FIT = "model.fit(data, epochs=3, callbacks=keep)\n"
LOOP = """\
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(10)])
    optimizer = tf.keras.optimizers.Adam()
    loss_fn = tf.keras.losses.MeanSquaredError(reduction="none")
shared = strategy.experimental_distribute_dataset(data)

def learn(batch):
    with tf.GradientTape() as tape:
        loss = tf.nn.compute_average_loss(loss_fn(batch, model(batch)), global_batch_size=64)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss

@tf.function
def step(batch):
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(learn, args=(batch,)), axis=None)

"""
READY_LOOP = GANG + RESOLVER + DATA + LOOP
"""A script with a loop of its own that is right up to that loop."""


def check(
    source: str,
    *,
    modules: Mapping[str, str] | None = None,
    workers: int = 2,
    gpus: int | None = None,
    versions: Mapping[str, str] | None = None,
    adapt: bool = True,
) -> list[Finding]:
    """Return the findings in a script ``task.py``."""
    sources = {"task.py": source, **(modules or {})}
    return lint(sources, "task.py", workers=workers, gpus=gpus, versions=versions, adapt=adapt)


def findings(source: str, **where: int | None) -> list[str]:
    """The same as ``MW101 error 12``."""
    result = check(source, workers=where.get("workers") or 2, gpus=where.get("gpus"))
    return [f"{item.rule} {item.severity.value} {item.line}" for item in result]


def line(source: str, piece: str) -> int:
    """Return the line number of a text in a script."""
    return source[: source.index(piece)].count("\n") + 1
