import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def step(number):
    loss = tf.math.log(tf.constant(3.0) - tf.cast(number, tf.float32) if index == 1 else 1.0)
    loss = tf.debugging.check_numerics(loss, "loss is not a number")
    return tf.distribute.get_replica_context().all_reduce("sum", loss)


for number in range(9):
    strategy.run(step, args=(tf.constant(number),))
    print(f"step {number}", flush=True)
