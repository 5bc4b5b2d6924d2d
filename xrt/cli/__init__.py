"""The ``xrt`` command: parses options, calls the library, and prints results."""

from xrt.cli.app import main

__all__ = ["main"]
