"""The process that supervises the task of a slot through all attempts."""
