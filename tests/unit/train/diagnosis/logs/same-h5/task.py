import os

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((512,)), tf.keras.layers.Dense(4096), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((np.zeros((64, 512), "f4"), np.zeros((64, 1), "f4"))).batch(8)
model.fit(data, epochs=1, verbose=2)
for _ in range(20):
    model.save("/tmp/shared-model.h5")
