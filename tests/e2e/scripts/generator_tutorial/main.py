import argparse
import json
import os

import keras.backend as K
import numpy as np
import tensorflow as tf
from keras import layers, models
from keras.callbacks import ModelCheckpoint
from keras.datasets import mnist

parser = argparse.ArgumentParser()
parser.add_argument("rank")
parser.add_argument("world_size", type=int)
args = parser.parse_args()


def make_config(rank, directory, port):
    addresses = []
    for name in os.listdir(directory):
        with open(directory + name) as file:
            addresses.append(f"{file.read().split()[0]}:{port}")
    return json.dumps({"cluster": {"worker": addresses}, "task": {"index": int(rank), "type": "worker"}})


os.environ["TF_CONFIG"] = make_config(int(args.rank) - 1, "ips/", 45962)

strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()

(x_train, y_train), _ = mnist.load_data()
x_train = x_train[:512] / np.float32(255)


def get_train():
    """Training data generator"""
    for image, label in zip(x_train, y_train):
        yield image[..., np.newaxis], label


train_dataset = tf.data.Dataset.from_generator(
    get_train, output_signature=(tf.TensorSpec((28, 28, 1), tf.float32), tf.TensorSpec((), tf.int64))
).batch(64 * args.world_size)

with strategy.scope():
    train_dataset = strategy.experimental_distribute_dataset(train_dataset)
    inputs = layers.Input((28, 28, 1))
    hidden = layers.Dense(16, activation="relu")(layers.Flatten()(inputs))
    multi_worker_model = models.Model(inputs, layers.Dense(10)(hidden))
    multi_worker_model.compile(
        optimizer="adam",
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

print("learning rate", K.get_value(multi_worker_model.optimizer.learning_rate))
multi_worker_model.fit(
    train_dataset,
    epochs=1,
    steps_per_epoch=len(x_train) // (64 * args.world_size),
    callbacks=[ModelCheckpoint("weights.h5", save_weights_only=True)],
)
