"""Allocations of batch systems: which nodes PBS or Slurm gave."""

from provision.allocation.nodelist import Node, NodelistError
from provision.allocation.pbs import parse_nodefile
from provision.allocation.slurm import expand_nodelist, nodes_of, parse_tasks_per_node

__all__ = ["Node", "NodelistError", "expand_nodelist", "nodes_of", "parse_nodefile", "parse_tasks_per_node"]
