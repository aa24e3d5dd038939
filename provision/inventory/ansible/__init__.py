"""Ansible's inventory formats: INI, YAML, ranges, groups, and variables."""
