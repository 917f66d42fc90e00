"""What the estimators are made of: members of several kinds, fitted without one fold each, and chosen among."""
