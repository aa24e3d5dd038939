"""The sources of hosts: instances, hosts, fleets, and the providers that create them."""
