"""Inventories of existing hosts, and exports of the fleet's hosts for other programs."""

from provision.inventory.ansible.entries import Entry
from provision.inventory.errors import InventoryError, Location
from provision.inventory.export import Form, export
from provision.inventory.reader import Inventory, read_inventory
from provision.ssh_config.arguments import SshArgs

__all__ = ["Entry", "Form", "Inventory", "InventoryError", "Location", "SshArgs", "export", "read_inventory"]
