import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
import sys


@tf.function
def step():
    return tf.distribute.get_replica_context().all_reduce("sum", tf.ones([4]))


for number in range(9999):
    strategy.run(step)
    if number % 100 == 0:
        print(f"step {number}", flush=True)
    if index == 1 and number == 50 and "again" not in sys.argv:
        os.execv(sys.executable, [sys.executable, __file__, "again"])  # the script starts itself anew
