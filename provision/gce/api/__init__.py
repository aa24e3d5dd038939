"""The APIs of Google: client, requests, and resources."""
