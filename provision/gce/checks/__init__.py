"""Checks of the prerequisites of a fleet, one module each."""
