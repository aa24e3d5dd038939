"""Where hosts come from: instances, hosts, fleets, and the providers that make them."""
