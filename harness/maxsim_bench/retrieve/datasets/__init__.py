"""Sources of data sets, one file each. May import: record, backends."""
