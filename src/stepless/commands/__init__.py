"""The commands of the command line, which `stepless.cli` declares."""
