"""Commands for jobs and scripts."""
