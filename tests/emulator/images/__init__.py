"""What guests find on their disks: files that are copied there, none that this program imports for itself."""
