"""The host that the agent runs on: interpreters, GPUs, ports, processes, and the jobs stored there."""
