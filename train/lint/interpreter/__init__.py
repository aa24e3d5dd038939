"""Follow a script as Python would run it, with values as far as they can be told."""
