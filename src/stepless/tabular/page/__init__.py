"""The page of a report: figures, formulas as JavaScript, template, scripts and style."""
