import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
optimizer = tf.keras.optimizers.legacy.Adam()
