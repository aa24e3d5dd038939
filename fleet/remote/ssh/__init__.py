"""SSH connections: authentication, host keys, proxies, and errors."""

from fleet.remote.ssh import clients as _clients  # noqa: F401 - imports paramiko before other modules do
