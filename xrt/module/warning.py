"""Warnings that point at the user's own line, however deep inside they arise."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from xrt.errors import XRTWarning

__all__ = ["warn"]

_PACKAGE = str(Path(__file__).parents[1])


def warn(message: str, category: type[XRTWarning]) -> None:
    """Issue a warning located at the nearest caller outside of the package.

    From Python 3.12 on ``skip_file_prefixes`` does the same.
    """
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)
