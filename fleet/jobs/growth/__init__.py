"""Let a running job take in new hosts (`--max-workers`)."""
