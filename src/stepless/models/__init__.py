"""A fitted classifier as a value: preprocessing, members, calibration, and the files they are kept in."""
