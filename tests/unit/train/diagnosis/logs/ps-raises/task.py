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
    server.join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weights = tf.Variable(tf.zeros([8]))


@tf.function
def step(number):
    tf.debugging.assert_less(number, 20, message="label out of range")
    return tf.reduce_sum(weights)


for number in range(100):
    coordinator.schedule(step, args=(tf.constant(number),))
coordinator.join()
