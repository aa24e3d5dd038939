"""The files that a job takes to its hosts."""
