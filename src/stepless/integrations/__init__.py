"""Adapters to other libraries: one thin module for each, with an extra of the same name.

None of them holds a formula: they pass scores and targets to `stepless.scoring`, and return the result in the library's
own form.
"""
