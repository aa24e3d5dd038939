"""Learn from a stream larger than memory: digits that a generator creates during training.

    python generator.py                          one process, here
    fleet train generator.py -- --epochs 10      the same on every worker of a fleet

Every picture is new: one of 1,437 real digits, moved by at most one pixel, with noise.
"""

import argparse
import itertools
import os
from pathlib import Path

import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser(description="Learn handwritten digits from an endless generator.")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=16, help="examples a worker takes in one step")
parser.add_argument("--steps", type=int, default=60, help="steps in one epoch")
args = parser.parse_args()

# The strategy comes before any other use of TensorFlow: it connects the workers with each other.
strategy = tf.distribute.MultiWorkerMirroredStrategy()
global_batch_size = args.batch_size * strategy.num_replicas_in_sync

digits = np.load(Path(__file__).with_name("digits.npz"))
images = digits["images"].astype("float32") / 16  # 1,797 pictures of 8 by 8 pixels, from 0 to 16
labels = digits["labels"].astype("int64")


def new_digits():
    """Yield pictures and labels without end; nothing is kept."""
    # The same seed on every worker: all see one stream, from which each takes its own part.
    random = np.random.default_rng(seed=1)
    for count in itertools.count():
        choice = count % 1437
        moved = np.roll(images[choice], random.integers(-1, 2, size=2), axis=(0, 1))
        noise = random.normal(0, 0.05, size=(8, 8))
        yield (moved + noise).astype("float32"), labels[choice]


# A stream has no files to divide among the workers. With DATA every worker runs the generator and takes every n-th
# part of it. That is right as long as making an example is cheap compared with learning from it.
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA

signature = (tf.TensorSpec((8, 8), tf.float32), tf.TensorSpec((), tf.int64))
stream = tf.data.Dataset.from_generator(new_digits, output_signature=signature)
training = stream.batch(global_batch_size).prefetch(tf.data.AUTOTUNE).with_options(options)

untouched = tf.data.Dataset.from_tensor_slices((images[1437:], labels[1437:]))
validation = untouched.batch(global_batch_size, drop_remainder=True).with_options(options)

# Variables that are made in the scope of the strategy have the same values on every worker.
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
    model.compile(
        optimizer=tf.keras.optimizers.Adam(0.001),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

backup = tf.keras.callbacks.BackupAndRestore(os.environ.get("FLEET_CHECKPOINT_DIR", "checkpoints"))

# A stream has no end, so the length of an epoch must be given.
model.fit(
    training,
    steps_per_epoch=args.steps,
    validation_data=validation,
    epochs=args.epochs,
    callbacks=[backup],
    verbose=2,
)
