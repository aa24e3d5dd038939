"""Bodies of requests, as JSON of the REST API."""
