"""Tables in, decisions out: estimators, comparisons and the command line; installed by the extras that need it."""
