"""Diagnosis of the errors of Compute Engine: message, scope, and what the user can do."""
