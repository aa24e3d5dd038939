"""Everything about the training job: the agent on the hosts, and what the client knows about scripts and failures."""
