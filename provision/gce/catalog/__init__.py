"""Names, machine types, and prices of Compute Engine."""
