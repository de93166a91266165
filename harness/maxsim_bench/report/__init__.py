"""Room `report`: rows in; tables, figures, verdicts and a page out. May import: record. Never imports torch."""
