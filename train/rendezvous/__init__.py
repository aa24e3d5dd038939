"""Rendezvous of processes that a batch system started: they find each other and exchange values."""
