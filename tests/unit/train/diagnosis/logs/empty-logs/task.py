import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
x = np.ones((64, 4), "float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).filter(lambda x, y: x[0] > 2).batch(8)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
dataset = dataset.with_options(options)
model.compile(optimizer="sgd", loss="mse")
model.fit(dataset, epochs=3, verbose=2)
