"""SSH connections: authentication, host keys, proxies, and errors."""

from fleet.remote.ssh import internals as _internals  # noqa: F401 - imports paramiko before other modules do
