"""What a training script is and what it needs, found without executing it."""
