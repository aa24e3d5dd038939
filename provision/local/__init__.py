"""Provider ``local``: real OpenSSH servers on this computer, one per worker."""
