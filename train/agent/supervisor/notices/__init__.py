"""Notices that a host is about to be lost."""
