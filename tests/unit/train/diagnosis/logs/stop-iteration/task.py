import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def step(batch):
    return tf.distribute.get_replica_context().all_reduce("sum", tf.reduce_sum(batch))


batches = iter(tf.data.Dataset.from_tensor_slices(np.ones([40 if index == 0 else 24, 2], "float32")).batch(8))
for number in range(5):
    total = strategy.run(step, args=(next(batches),))
    print(f"step {number} total {total.numpy()}", flush=True)
