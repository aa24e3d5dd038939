"""Learn handwritten digits with Keras `fit`, on one or more workers.

    python keras_fit.py                          one process, here
    fleet train keras_fit.py -- --epochs 10      the same on every worker of a fleet

The script does not set the number of workers: TensorFlow reads it from TF_CONFIG, which `fleet` sets.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser(description="Learn handwritten digits with Keras fit.")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=32, help="examples a worker takes in one step")
args = parser.parse_args()

# The strategy comes before any other use of TensorFlow: it connects the workers with each other.
strategy = tf.distribute.MultiWorkerMirroredStrategy()

# A data set has batches for all workers together; each worker gets its share of every batch.
global_batch_size = args.batch_size * strategy.num_replicas_in_sync


def make_dataset(images, labels):
    """Return the batches for all workers; each worker reads the same file and keeps its part of the examples."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images), seed=1)
    # Equal steps for all workers: an incomplete last batch is dropped.
    return dataset.batch(global_batch_size, drop_remainder=True).with_options(options)


digits = np.load(Path(__file__).with_name("digits.npz"))
images = digits["images"].astype("float32") / 16  # 1,797 pictures of 8 by 8 pixels, from 0 to 16
labels = digits["labels"].astype("int64")
training = make_dataset(images[:1437], labels[:1437])
validation = make_dataset(images[1437:], labels[1437:])

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

# After each epoch the state of training is saved, and kept. A job that is started again continues from there.
checkpoint_dir = os.environ.get("FLEET_CHECKPOINT_DIR", "checkpoints")
backup = tf.keras.callbacks.BackupAndRestore(checkpoint_dir, delete_checkpoint=False)

# One line an epoch (verbose=2). The figures of a progress bar within an epoch are sums over the workers.
model.fit(training, validation_data=validation, epochs=args.epochs, callbacks=[backup], verbose=2)

# Saving takes part on all workers, each in its own directory; `fleet pull` copies the model of the first one.
model.save(Path(os.environ.get("FLEET_MODEL_DIR", ".")) / "digits.keras")
