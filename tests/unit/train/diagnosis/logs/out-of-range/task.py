import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
dataset = tf.data.Dataset.from_tensor_slices(np.ones([64, 2], "float32")).batch(8)
distributed = strategy.experimental_distribute_dataset(dataset)


@tf.function
def epoch(iterator, steps):
    total = tf.constant(0.0)
    for _ in tf.range(steps):
        total += strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(next(iterator),)), axis=None)
    return total


for number in range(3):
    total = epoch(iter(distributed), tf.constant(20))
    print(f"epoch {number} total {total.numpy()}", flush=True)
