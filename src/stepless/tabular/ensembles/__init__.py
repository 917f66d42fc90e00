"""The parts of the estimators: cross-fitted ensembles of several kinds, and the choice among them."""
