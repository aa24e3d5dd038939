"""Existing hosts of an inventory; fleets use and release them, but never create or delete them."""
