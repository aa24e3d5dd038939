"""The commands, one file each: `run(request, services, sink)` emits events and never prints."""
