"""Room `report`: rows in; tables, figures, verdicts and a page out. Never imports torch. May import: declare, record."""
