"""Find distributed-training bugs in a script from its syntax tree."""
