"""Room `record`: rows, the store that keeps them, and where they came from. May import: declare."""
