"""A fitted classifier as a value: preprocessing, members, calibration, and the files it is saved in."""
