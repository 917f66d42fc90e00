"""The commands of the command line, which `stepless.tabular.cli` declares."""
