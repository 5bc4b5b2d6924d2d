"""Regions compiled by Inductor, PyTorch's compiler, to a shared library that contains the weights.

The compile runs in a subprocess, because Inductor changes state, folders and environment variables of its process.
"""
