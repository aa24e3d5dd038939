import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(8)])
    if index == 1:  # an older copy of the module that builds the model
        model.add(tf.keras.layers.Dense(6))
    model.add(tf.keras.layers.Dense(1))
x = np.ones((64, 4), "float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).repeat().batch(8)

model.compile(optimizer="sgd", loss="mse")
model.fit(dataset, epochs=3, steps_per_epoch=5, verbose=2)
