"""Start tasks from a process that has imported what their scripts import first."""
