"""Frontends: a model written elsewhere comes in, a Function goes out.

`xrt.Graph` is the one for graphs written in Python. Nothing here runs a model or knows an engine.
"""
