"""Configure the disk cache from environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from xrt.cache.disk.tier import DiskTier
from xrt.errors import CacheError, CacheWarning, warn

__all__ = ["DEFAULT_LIMIT", "DIRECTORY", "LIMIT", "SWITCH", "expand_user", "find_cache_directory", "open_disk_tier", "parse_size"]

DIRECTORY = "XRT_CACHE_DIR"
"""Environment variable for the directory; the default is ``xrt`` in the user's cache directory."""
SWITCH = "XRT_CACHE"
"""Environment variable to disable the disk tier: ``off``; ``on``, empty or unset enables it."""
LIMIT = "XRT_CACHE_SIZE"
"""Environment variable for the size limit, such as ``500MB`` or ``20GB``."""
DEFAULT_LIMIT = 5_000_000_000

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kMGT]?)B?", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def find_cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """The cache directory configured in the environment; raises CacheError if there is none."""
    asked = environment.get(DIRECTORY, "").strip()
    if asked:
        return expand_user(asked, DIRECTORY)
    import platformdirs  # only needed for the default directory

    found = platformdirs.user_cache_path("xrt", appauthor=False)
    if not found.is_absolute():  # without a home directory it is "~/.cache"
        raise CacheError(f"this user has no home directory to keep a cache in; name a directory in {DIRECTORY}")
    return found


def expand_user(text: str | os.PathLike[str], whose: str) -> Path:
    """Expand ``~`` and make the path absolute; raises CacheError for an unknown user."""
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:  # raised by pathlib for an unknown user
        name = os.fspath(text).split("/")[0]
        raise CacheError(
            f"{whose} is {os.fspath(text)!r}, and no home directory is known for {name!r}; give the whole path"
        ) from None


def open_disk_tier(environment: Mapping[str, str] = os.environ, directory: Path | None = None) -> DiskTier | None:
    """The disk tier configured in the environment, optionally in another directory; None if disabled."""
    switch = environment.get(SWITCH, "").strip().lower()
    if switch in ("off", "0", "no", "false"):
        return None
    if switch not in ("", "on", "1", "yes", "true"):
        warn(f"{SWITCH} must be on or off; got {switch!r}, so the disk cache is on", CacheWarning)
    try:
        place = directory or find_cache_directory(environment)
    except CacheError as error:
        warn(f"{error}. Nothing is kept on disk", CacheWarning)
        return None
    return DiskTier(place, limit=_limit_of(environment))


def _limit_of(environment: Mapping[str, str]) -> int:
    text = environment.get(LIMIT, "").strip()
    if not text:
        return DEFAULT_LIMIT
    found = parse_size(text)
    if found is None:
        warn(f"{LIMIT} must be a size such as 500MB or 20GB; got {text!r}, so it is {DEFAULT_LIMIT // 10**9}GB", CacheWarning)
    return DEFAULT_LIMIT if found is None else found


def parse_size(text: str) -> int | None:
    """Parse a size in bytes; None if the text is not a size.

    >>> parse_size("1.5 GB"), parse_size("1024"), parse_size("big"), parse_size("9" * 400)
    (1500000000, 1024, None, None)
    """
    match = _SIZE.fullmatch(text.strip())
    return int(float(match[1]) * _UNITS[match[2].lower()]) if match else None
