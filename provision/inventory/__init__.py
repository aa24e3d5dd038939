"""Inventories of existing hosts, and exports of the fleet's hosts for other programs."""
