import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
config = json.loads(os.environ["TF_CONFIG"])
config["task"]["type"] = "master"
os.environ["TF_CONFIG"] = json.dumps(config)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
print("ready", flush=True)
