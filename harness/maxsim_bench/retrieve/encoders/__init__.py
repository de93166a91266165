"""Encoders, one file each; `registry.py` finds them. May import: record, backends."""
