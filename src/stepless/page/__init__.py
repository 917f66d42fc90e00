"""The page of a report: its figures, its formulas as JavaScript, its template and scripts."""
