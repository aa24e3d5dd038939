import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def step(number):
    tf.debugging.assert_less(number, 4 if index == 1 else 99, message="label out of range")
    return tf.distribute.get_replica_context().all_reduce("sum", tf.ones([4]))


for number in range(9):
    strategy.run(step, args=(tf.constant(number),))
    print(f"step {number}", flush=True)
