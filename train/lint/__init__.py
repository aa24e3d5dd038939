"""Reads a training script, by its syntax tree alone, for what goes wrong between several workers."""
