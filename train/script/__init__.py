"""Analyze a training script and its requirements without executing it."""

NEWEST_TF_KERAS = "2.21.0"
"""The newest release of tf-keras. It requires the TensorFlow of the same minor version, which is released earlier."""
