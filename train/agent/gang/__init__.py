"""Gang scheduling as pure state machines: start together, stop together."""
