"""Revisions of the schema, oldest first."""
