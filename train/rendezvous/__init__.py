"""How processes that a batch system has started together find each other, and tell each other what they have."""
