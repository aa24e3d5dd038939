"""The part that is pushed to every host: standard library alone, Python 3.9 and later."""
