"""Encoders, one file each; `registry.py` finds them.

Room: `retrieve`. May import: record, backends.
"""
