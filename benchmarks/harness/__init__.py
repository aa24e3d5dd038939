"""Hosts, peers, and commands of the benchmarks, and how they are measured."""
