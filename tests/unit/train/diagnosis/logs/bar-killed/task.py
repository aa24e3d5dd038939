import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
import signal

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
x = np.ones((800, 4), "float32")


class Kill(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 31 and index == 1:
            os.kill(os.getpid(), signal.SIGKILL)


dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).repeat().batch(8)
model.compile(optimizer="sgd", loss="mse")
model.fit(dataset, epochs=2, steps_per_epoch=44, verbose=1, callbacks=[Kill()])
