"""Notes on TensorFlow."""
