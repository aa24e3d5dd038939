import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
import sys

if not os.path.exists("labels.txt") and index == 1:
    sys.exit("no labels.txt: run prepare.py first")
strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.ones([2])))
