"""The user's OpenSSH configuration: routes to hosts, options, and known hosts."""
