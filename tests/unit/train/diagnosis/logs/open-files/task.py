import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
import resource

resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
files = [open(__file__) for _ in range(100)]
