"""Room `run`: cells in, rows in the store out, by way of worker processes. May import: declare, record, measure, backends."""
