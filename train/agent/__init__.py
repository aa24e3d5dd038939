"""The part that is pushed to every host: standard library only, Python 3.9 and later."""
