"""Comparisons with named peers, side by side in one run, printed as ratios."""
