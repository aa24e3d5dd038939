"""Connections between the agents of a job, and the check that every pair of tasks can connect."""
