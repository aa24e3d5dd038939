import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
os.seteuid(65534)
for number in range(3):
    print(f"step {number}", flush=True)
with open("/etc/run.log" if index == 0 else os.devnull, "w") as log:
    log.write("done")
