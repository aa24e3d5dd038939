"""Groups of measurements, one module each: TITLE, and `measure`, which runs them in a session."""

NAMES = (
    "startup",
    "exec",
    "job",
    "push",
    "uplink",
    "logs",
    "latency",
    "local",
    "skew",
    "training",
    "restart",
    "steps",
    "agent",
    "console",
    "flood",
    "cloud",
)
