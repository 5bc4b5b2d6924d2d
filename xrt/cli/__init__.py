"""The ``xrt`` command: what a person types, and what the screen shows.

Arguments come in, text and files go out. Everything that is computed is computed by the rooms below; nothing below
prints.
"""

from xrt.cli.app import main

__all__ = ["main"]
