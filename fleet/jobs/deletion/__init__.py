"""Deletion of hosts that store results: what would be lost, and the question before it."""
