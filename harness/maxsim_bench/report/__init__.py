"""Room `report`: rows in; tables, figures, verdicts, a page out. Never imports torch. May import: declare, record."""
