import json
import os
import signal
import time

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    if resolver.task_type == "ps":
        time.sleep(float(os.environ.get("LIFETIME", "25")))
        os._exit(0)
    server.join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weights = tf.Variable(tf.zeros([64, 64]))


@tf.function
def step():
    weights.assign_add(tf.ones([64, 64]))
    return tf.reduce_sum(weights)


for number in range(100000):
    coordinator.schedule(step)
    coordinator.join()
    if number % 100 == 0:
        print(f"step {number}", flush=True)
