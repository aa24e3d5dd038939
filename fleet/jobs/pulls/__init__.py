"""Copies of results on this computer: a pull, and pulls that were requested with a job."""
