"""Store results of jobs on the computer of the user."""
