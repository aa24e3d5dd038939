"""Hosts over SSH: connections, fan-out, the bundle, and the conversation with the agent.

Nothing is imported here: paramiko and fabric cost a quarter of a second, and commands that reach no host do without.
"""
