import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
path = tf.keras.utils.get_file("train.npz", "http://data.example.invalid/train.npz")
print(path, flush=True)
