"""Options of the commands for jobs and scripts."""
