"""Comparisons with other programs in one run, printed as ratios."""
