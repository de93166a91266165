"""Sources of data sets, one file each.

Room: `retrieve`. May import: record, backends.
"""
