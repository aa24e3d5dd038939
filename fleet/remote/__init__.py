"""Connect to hosts over SSH, run actions on many hosts, upload files, and exchange records with the agents.

Nothing is imported here: paramiko and fabric take a quarter of a second to import, and some commands need no host.
"""
