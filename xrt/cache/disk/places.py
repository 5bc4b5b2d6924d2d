"""Where the cache directory is, and what the environment says of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from xrt.cache.disk.tier import DiskTier
from xrt.errors import CacheWarning, warn

__all__ = ["DEFAULT_LIMIT", "DIRECTORY", "LIMIT", "SWITCH", "bytes_of", "directory_of", "tier_of"]

DIRECTORY = "XRT_CACHE_DIR"
"""The environment variable that names the directory; without it, it is ``xrt`` in the user's cache directory."""
SWITCH = "XRT_CACHE"
"""The environment variable that switches the disk tier off: ``off``. ``on``, empty or absent leaves it on."""
LIMIT = "XRT_CACHE_SIZE"
"""The environment variable that says how large the directory may get, such as ``500MB`` or ``20GB``."""
DEFAULT_LIMIT = 5_000_000_000

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kMGT]?)B?", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def directory_of(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the cache directory that the environment asks for."""
    asked = environment.get(DIRECTORY, "").strip()
    if asked:
        return Path(asked).expanduser()
    import platformdirs  # where nothing else says where

    return platformdirs.user_cache_path("xrt", appauthor=False)


def tier_of(environment: Mapping[str, str] = os.environ, directory: Path | None = None) -> DiskTier | None:
    """Return the disk tier that the environment asks for, in that directory if one is given; None where it is switched off."""
    switch = environment.get(SWITCH, "").strip().lower()
    if switch in ("off", "0", "no", "false"):
        return None
    if switch not in ("", "on", "1", "yes", "true"):
        warn(f"{SWITCH} must be on or off; got {switch!r}, so the disk cache is on", CacheWarning)
    return DiskTier(directory or directory_of(environment), limit=_limit_of(environment))


def _limit_of(environment: Mapping[str, str]) -> int:
    text = environment.get(LIMIT, "").strip()
    if not text:
        return DEFAULT_LIMIT
    found = bytes_of(text)
    if found is None:
        warn(f"{LIMIT} must be a size such as 500MB or 20GB; got {text!r}, so it is {DEFAULT_LIMIT // 10**9}GB", CacheWarning)
    return DEFAULT_LIMIT if found is None else found


def bytes_of(text: str) -> int | None:
    """Return the size that a text spells, None where it spells none.

    >>> bytes_of("1.5 GB"), bytes_of("1024"), bytes_of("big"), bytes_of("9" * 400)
    (1500000000, 1024, None, None)
    """
    match = _SIZE.fullmatch(text.strip())
    return int(float(match[1]) * _UNITS[match[2].lower()]) if match else None
