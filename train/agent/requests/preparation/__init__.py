"""Requests that prepare a host before its first job."""
