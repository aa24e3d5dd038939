import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
folder = "/tmp/shared-checkpoint"
variables = [tf.Variable(tf.ones([256, 256])) for _ in range(8)]
checkpoint = tf.train.Checkpoint(variables=variables)
manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1)
for number in range(200):
    manager.save(checkpoint_number=number)
    print(f"saved {number}", flush=True)
