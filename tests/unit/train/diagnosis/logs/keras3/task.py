import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
from keras import layers, models

with strategy.scope():
    model = models.Sequential([layers.Input((4,)), layers.Dense(1)])
x = np.ones((64, 4), "float32")
model.compile(optimizer="sgd", loss="mse")
model.fit(x, x[:, :1], verbose=2)
