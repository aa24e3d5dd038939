import tensorflow as tf

flags = tf.app.flags
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
