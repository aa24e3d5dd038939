"""Hosts that exist already: inventories, and the fleet's hosts written down for other programs."""

from provision.static.entries import Entry
from provision.static.errors import InventoryError, Place
from provision.static.export import Form, export
from provision.static.inventory import Inventory, read_inventory
from provision.static.ssh_args import SshArgs

__all__ = ["Entry", "Form", "Inventory", "InventoryError", "Place", "SshArgs", "export", "read_inventory"]
