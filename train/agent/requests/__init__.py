"""Requests of the client, one module each."""
