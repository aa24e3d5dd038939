import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
os.environ["TF_CONFIG"] = json.dumps(
    {"cluster": {"worker": ["localhost:23456", "localhost:23456"]}, "task": {"type": "worker", "index": index}}
)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
print("ready", flush=True)
