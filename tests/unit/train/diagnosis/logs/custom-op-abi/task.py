import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
import subprocess

with open("op.c", "w") as source:
    source.write("extern int TF_ThisSymbolIsOld(void); int run(void) { return TF_ThisSymbolIsOld(); }")
subprocess.run(["cc", "-shared", "-fPIC", "-o", "op.so", "op.c"], check=True)
op = tf.load_op_library("./op.so")
