import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def step(size):
    value = tf.random.uniform(tf.stack([size, 1 << 20]))
    return tf.distribute.get_replica_context().all_reduce("sum", tf.reduce_sum(value))


for number in range(5):
    size = 1 << 20 if index == 1 and number == 3 else 1
    strategy.run(step, args=(tf.constant(size),))
    print(f"step {number}", flush=True)
