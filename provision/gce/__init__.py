"""Instances on Google Compute Engine."""
