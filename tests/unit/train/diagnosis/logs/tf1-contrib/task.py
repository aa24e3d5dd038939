import tensorflow as tf
from tensorflow.contrib import slim

print(slim, tf.__version__)
