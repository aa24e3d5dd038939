"""SSH connections: authentication, host keys, proxies, and errors."""

from fleet.remote.ssh import library as _library  # noqa: F401 - imports paramiko before other modules do
