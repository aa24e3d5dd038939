"""Analyze a training script and its requirements without executing it."""
