"""Files of a host: their paths, their contents, and the journal of an attempt."""
