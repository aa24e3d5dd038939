"""Compute Engine's REST API: client, requests, and resources."""
