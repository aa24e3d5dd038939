"""Inventories of existing hosts, and exports of the fleet's hosts for other programs."""

from provision.inventory.entry import Entry
from provision.inventory.export import Form, export
from provision.inventory.files import InventoryError
from provision.inventory.reader import Inventory, read_inventory

__all__ = ["Entry", "Form", "Inventory", "InventoryError", "export", "read_inventory"]
