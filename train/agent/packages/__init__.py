"""Virtual environments and what pip installs into them."""
