"""The parts of `stepless.compare`: contestants, folds, results, tests and verdict."""
