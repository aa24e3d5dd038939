"""Machine types, prices, locations, and networks of Compute Engine."""
