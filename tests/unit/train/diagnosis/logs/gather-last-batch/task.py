import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
parts = tf.data.Dataset.from_tensor_slices(np.ones([20 if index == 0 else 17, 3], "float32")).batch(8)


@tf.function
def evaluate(batch):
    context = tf.distribute.get_replica_context()
    return context.all_gather(batch * 1.0, axis=1)


for batch in parts:
    print("gathered", strategy.run(evaluate, args=(batch,)).shape, flush=True)
