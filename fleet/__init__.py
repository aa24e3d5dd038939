"""The `fleet` program: commands, SSH, console and state, on top of `provision` and `train`."""

__version__ = "0.1.0"
