"""Commands for fleets."""
