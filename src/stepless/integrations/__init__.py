"""Where people already work: one thin module for each library, imported by its own name, each an extra of its own.

None of them holds a formula. They hand scores and targets to the one path of `stepless.scoring`, and what comes back to
the library that asked.
"""
