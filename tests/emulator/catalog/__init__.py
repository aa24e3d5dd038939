"""The offers of the emulated Compute Engine: locations, machines, images, networks, and default quotas."""
