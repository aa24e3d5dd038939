"""Hosts of an allocation of a batch system, Slurm or PBS."""
