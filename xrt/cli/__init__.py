"""The ``xrt`` command: parses options, calls the library, and prints results."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit: 0 for success, 1 for a finding, 2 for an error, 130 if interrupted."""
    try:
        # Imported here, so that Ctrl-C during the imports shows no traceback either.
        from xrt.cli import app

        app.main(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: stopped before the end\n")
        sys.exit(130)
