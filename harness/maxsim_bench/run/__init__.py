"""Room `run`: cells in, rows in the store out, by worker processes. May import: declare, record, measure, backends."""
