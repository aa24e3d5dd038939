import json
import os

import numpy as np
import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
from http.server import HTTPServer, SimpleHTTPRequestHandler

server = HTTPServer(("0.0.0.0", 28080), SimpleHTTPRequestHandler)  # a page with the progress
print("step 1", flush=True)
while True:
    tf.distribute.get_replica_context()
    strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.ones([2])))
