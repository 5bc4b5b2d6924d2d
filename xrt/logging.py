"""Logging: the logger ``xrt``, silent unless the program or the variable ``XRT_LOG`` enables it.

Each module logs to a child logger: plans, compiles and refusals at level info, the cache at level debug.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from xrt.errors import XRTWarning, did_you_mean, warn

LOG_VARIABLE = "XRT_LOG"
"""The environment variable: ``info`` or ``debug``; if unset, the program configures the logger."""

_LEVELS = ("info", "debug")


def configure_logging(environment: Mapping[str, str]) -> None:
    """Configure the logger ``xrt`` from the environment: print to standard error, or stay silent.

    Warns about an unknown level. A second call changes the level without adding a handler.
    """
    logger = logging.getLogger("xrt")
    if not logger.handlers:
        # Without any handler, Python prints warnings of a logger on standard error.
        logger.addHandler(logging.NullHandler())
    level = environment.get(LOG_VARIABLE, "").strip().lower()
    if not level:
        return
    if level not in _LEVELS:
        hint = did_you_mean(level, _LEVELS)
        warn(f"{LOG_VARIABLE} must be info or debug; got {level!r}, so nothing is logged.{hint}", XRTWarning)
        return
    log_to_stderr(level)


def log_to_stderr(level: str) -> None:
    """Print log records of at least this level on standard error: debug, info, warning or error."""
    logger = logging.getLogger("xrt")
    logger.setLevel(level.upper())
    if not any(type(handler) is logging.StreamHandler for handler in logger.handlers):
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
