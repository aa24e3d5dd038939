import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
import shutil

folder = "/tmp/shared-model"
module = tf.Module()
module.variables_ = [tf.Variable(tf.ones([256, 256])) for _ in range(8)]
for number in range(200):
    shutil.rmtree(folder, ignore_errors=True)
    tf.saved_model.save(module, folder)  # every task saves to one folder
    print(f"saved {number}", flush=True)
