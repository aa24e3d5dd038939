"""Files that are copied to the disks of guests; this program does not import them."""
