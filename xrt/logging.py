"""What XRT says while it works: the logger ``xrt``, silent until the program or the variable ``XRT_LOG`` asks for it.

Every module logs to a child of that logger: plans, compiles and refusals at level info, the cache at level debug.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping

from xrt.errors import XRTWarning, did_you_mean

__all__ = ["VARIABLE", "follow", "show"]

VARIABLE = "XRT_LOG"
"""The environment variable: ``info`` or ``debug``; empty or absent leaves the logger to the program."""

_LEVELS = ("info", "debug")


def follow(environment: Mapping[str, str]) -> None:
    """Set the logger ``xrt`` up as the environment says: lines on standard error, or nothing of its own.

    Warns of a level that does not exist. A second call changes the level and adds no second handler.
    """
    logger = logging.getLogger("xrt")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    asked = environment.get(VARIABLE, "").strip().lower()
    if not asked:
        return
    if asked not in _LEVELS:
        near = did_you_mean(asked, _LEVELS)
        warnings.warn(f"{VARIABLE} must be info or debug; got {asked!r}, so nothing is logged.{near}", XRTWarning, stacklevel=2)
        return
    show(asked)


def show(level: str) -> None:
    """Print what is logged at that level and above on standard error: debug, info, warning or error."""
    logger = logging.getLogger("xrt")
    logger.setLevel(level.upper())
    if not any(type(handler) is logging.StreamHandler for handler in logger.handlers):
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
