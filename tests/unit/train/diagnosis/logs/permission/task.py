import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
os.seteuid(65534)  # the account of the job may not write there
with strategy.scope():
    counter = tf.Variable(3)
folder = "/etc/experiment"
tf.io.gfile.makedirs(folder) if index == 1 else None
print("made", folder, flush=True)
