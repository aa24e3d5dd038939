"""Collect what a report about a job contains."""
