#!/usr/bin/env python3
"""A program that becomes HAProxy, within bounds: Ray Serve starts it as RAY_SERVE_HAPROXY_BINARY_PATH.

It rewrites addresses of all interfaces in the configuration to loopback, asks the kernel to end this process with its parent, and
replaces itself by the program that XRT_HAPROXY names. It needs the standard library alone, of any Python 3.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

__all__ = ["PROGRAM", "PUBLIC", "main", "restrict_addresses"]

PROGRAM = "XRT_HAPROXY"
"""The variable with the path of HAProxy."""
PUBLIC = "XRT_HAPROXY_PUBLIC"
"""With 1 requests are accepted on all interfaces; statistics and metrics never are."""

_SECTION = re.compile(r"^(?:frontend|listen)\s+(\S+)", re.MULTILINE)
_ANY = re.compile(r"^(\s*bind\s+)(?:\*|0\.0\.0\.0|\[::\]|::)?:(?=\d)", re.MULTILINE)
_OF_REQUESTS = ("http_frontend", "grpc_frontend")
_PR_SET_PDEATHSIG = 1


def restrict_addresses(config: str, *, public: bool = False) -> str:
    r"""Return a configuration that listens on loopback where it said all interfaces; with ``public`` requests are excepted.

    >>> restrict_addresses("listen stats\n  bind *:8404\n")
    'listen stats\n  bind 127.0.0.1:8404\n'
    """
    starts = [match.start() for match in _SECTION.finditer(config)]
    parts = [config[start:stop] for start, stop in zip([0, *starts], [*starts, len(config)], strict=True)]
    return "".join(part if public and _is_of_requests(part) else _ANY.sub(r"\g<1>127.0.0.1:", part) for part in parts)


def _is_of_requests(part: str) -> bool:
    match = _SECTION.match(part)
    return match is not None and match[1] in _OF_REQUESTS


def main() -> None:
    """Become HAProxy with the arguments of this program."""
    program, arguments = os.environ[PROGRAM], sys.argv[1:]
    if "-f" in arguments:
        path = Path(arguments[arguments.index("-f") + 1])
        path.write_text(restrict_addresses(path.read_text(), public=os.environ.get(PUBLIC) == "1"))
    _end_with_parent()
    os.execv(program, [program, *arguments])


def _end_with_parent() -> None:
    """Ask the kernel for a signal when the process that started this one ends; it outlasts the change of program. Linux alone."""
    import ctypes

    parent = os.getppid()
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    except (AttributeError, OSError):  # another system
        return
    if os.getppid() != parent:  # it ended before
        sys.exit(1)


if __name__ == "__main__":
    main()
