"""Checkpoint directories: complete snapshots, and their replicas on the other hosts."""
