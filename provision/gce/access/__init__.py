"""Access to instances: firewall rules, addresses, and host keys."""
