"""Collect, hash, and send the files of a job to its hosts."""
