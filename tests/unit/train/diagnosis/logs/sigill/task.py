import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
import signal

for number in range(3):
    print(f"step {number}", flush=True)
if index == 1:
    os.kill(os.getpid(), signal.SIGILL)
strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.ones([2])))
