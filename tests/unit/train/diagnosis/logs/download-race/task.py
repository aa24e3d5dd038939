import json
import os
import time

import numpy as np
import tensorflow as tf

if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
    time.sleep(1)
data = np.load(tf.keras.utils.get_file("images.npz", "http://127.0.0.1:8399/images.npz"))
