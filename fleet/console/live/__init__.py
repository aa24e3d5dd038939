"""The live console: the log scrolls above a table that is drawn in place."""
