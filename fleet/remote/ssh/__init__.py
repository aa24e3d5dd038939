"""SSH connections: authentication, host keys, proxies, and errors."""
