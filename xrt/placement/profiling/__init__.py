"""Profiling: regions are compiled, checked against the reference and timed, in worker processes or in this one."""
