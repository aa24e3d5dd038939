"""Follow a job: its state and its output, in the order of time."""
