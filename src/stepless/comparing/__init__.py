"""What a comparison is made of: contestants, folds, results, tests and verdict."""
