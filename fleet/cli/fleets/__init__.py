"""Options of the commands for fleets."""
