"""Quote a fleet before anything is rented: zones in order, prices, and quotas."""
