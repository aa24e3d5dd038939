"""Learn handwritten digits in a custom training loop with checkpoints, on one or more workers.

    python custom_loop.py                          one process, here
    fleet train custom_loop.py -- --epochs 10      the same on every worker of a fleet

If it is stopped and started again, it continues after the last finished epoch.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser(description="Learn handwritten digits in a custom training loop.")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=16, help="examples a worker takes in one step")
args = parser.parse_args()

# The strategy comes before any other use of TensorFlow: it connects the workers with each other.
strategy = tf.distribute.MultiWorkerMirroredStrategy()
global_batch_size = args.batch_size * strategy.num_replicas_in_sync

digits = np.load(Path(__file__).with_name("digits.npz"))
images = digits["images"].astype("float32") / 16  # 1,797 pictures of 8 by 8 pixels, from 0 to 16
labels = digits["labels"].astype("int64")


def make_dataset(context):
    """Return the batches of one worker: every n-th example, with n the number of workers."""
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    batch_size = context.get_per_replica_batch_size(global_batch_size)
    return dataset.shuffle(len(images), seed=1).repeat().batch(batch_size)


# Everything with variables is created in the scope of the strategy: the same values on every worker.
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.Input(shape=(8, 8)),
            tf.keras.layers.Reshape((8, 8, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    optimizer = tf.keras.optimizers.Adam(0.001)
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
    # No reduction: the mean over all workers is taken below, and only the script knows the global batch size.
    cross_entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    epochs_done = tf.Variable(0, dtype=tf.int64, trainable=False)


def learn(batch):
    """Run one worker's part of a step."""
    pictures, answers = batch
    with tf.GradientTape() as tape:
        guesses = model(pictures, training=True)
        loss = tf.nn.compute_average_loss(cross_entropy(answers, guesses), global_batch_size=global_batch_size)
    gradients = tape.gradient(loss, model.trainable_variables)
    # Here the workers add up their gradients and wait for each other.
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    accuracy.update_state(answers, guesses)
    return loss


@tf.function
def step(iterator):
    """Run one step on all workers; return its loss, the same number on each."""
    losses = strategy.run(learn, args=(next(iterator),))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


# Every worker must take part in saving, or the others wait for it forever. But only the chief's
# files are kept. The others write to a directory of their own, which they then delete.
resolver = strategy.cluster_resolver
cluster = resolver.cluster_spec().as_dict()  # empty without TF_CONFIG
chief = ("chief", 0) if "chief" in cluster else ("worker", 0)
is_chief = not cluster or (resolver.task_type, resolver.task_id) == chief
checkpoint_dir = os.environ.get("FLEET_CHECKPOINT_DIR", "checkpoints")
write_dir = checkpoint_dir if is_chief else f"{checkpoint_dir}/workertemp_{resolver.task_id}"

# The checkpoint needs everything to continue: also the optimizer's state and the number of epochs.
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epochs_done=epochs_done)
manager = tf.train.CheckpointManager(checkpoint, write_dir, max_to_keep=1)
latest = tf.train.latest_checkpoint(checkpoint_dir)
if latest:
    checkpoint.restore(latest)
    print(f"Resumed after epoch {epochs_done.numpy()}")

iterator = iter(strategy.distribute_datasets_from_function(make_dataset))
steps = len(images) // global_batch_size

for epoch in range(epochs_done.numpy(), args.epochs):
    total = 0.0
    for _ in range(steps):
        total += step(iterator)
    print(f"Epoch {epoch + 1}/{args.epochs} - loss: {total / steps:.4f} - accuracy: {accuracy.result():.4f}")
    accuracy.reset_state()

    epochs_done.assign_add(1)  # before saving, so that this epoch is not done again
    manager.save()
    if not is_chief:
        tf.io.gfile.rmtree(write_dir)
