"""Provider ``local``: real OpenSSH servers on this computer, one per worker."""

from provision.local.provider import LocalProvider

__all__ = ["LocalProvider"]
