"""Access to instances: networks, firewall rules, addresses, accounts, and host keys."""
