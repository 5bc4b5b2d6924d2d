"""Run tests with a given build of the native library: ``python -m tools.sanitized LIBRARY [arguments of pytest]``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from xrt.engines.native import bindings

if __name__ == "__main__":
    bindings.SHIPPED = Path(sys.argv[1]).resolve()
    sys.exit(pytest.main(["-p", "no:cacheprovider", *sys.argv[2:]]))
