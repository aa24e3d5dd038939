"""Interpret a script as Python would run it, with values as far as they are known."""
