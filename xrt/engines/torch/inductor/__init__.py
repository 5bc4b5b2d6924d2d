"""Regions compiled by Inductor, PyTorch's compiler.

A Function goes in and a shared library with its weights comes out, made in a process of its own: Inductor changes state, folders
and environment variables of the process that calls it. None of that reaches this one, which only loads the library.
"""
