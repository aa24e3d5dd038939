"""Hosts that exist already, named by an inventory; they are borrowed and released, never created or deleted."""
