"""The commands, one file each: `run(request, ports, sink)` emits events and never prints."""
