"""Predict the speedup of a script on more workers from a few measured steps."""
