"""Comparisons with other programs in one run: `./scripts/bench`."""
