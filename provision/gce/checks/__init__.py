"""Checks of the prerequisites of a fleet."""
