"""The disk tier: what one process has compiled, the next one loads.

A signature and a way to compile come in, an executable goes out: read from an entry, or compiled and written to one. An
entry is a file named by its signature's hash; it is written whole or not at all, carries checksums, and is data for the
engine that wrote it, never code of Python's. Whatever goes wrong with files costs a compile and a warning, never a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.cache.disk.config import DEFAULT_LIMIT as DEFAULT_LIMIT
    from xrt.cache.disk.config import DIRECTORY as DIRECTORY
    from xrt.cache.disk.config import LIMIT as LIMIT
    from xrt.cache.disk.config import SWITCH as SWITCH
    from xrt.cache.disk.config import find_cache_directory as find_cache_directory
    from xrt.cache.disk.config import open_disk_tier as open_disk_tier
    from xrt.cache.disk.store import CacheEntry as CacheEntry
    from xrt.cache.disk.store import Item as Item
    from xrt.cache.disk.store import Store as Store
    from xrt.cache.disk.store import StoredFailure as StoredFailure
    from xrt.cache.disk.tier import CompileRequest as CompileRequest
    from xrt.cache.disk.tier import DiskStatistics as DiskStatistics
    from xrt.cache.disk.tier import DiskTier as DiskTier
    from xrt.cache.disk.weight_hashes import WeightHashStore as WeightHashStore

_MODULES = {
    "CacheEntry": "xrt.cache.disk.store",
    "CompileRequest": "xrt.cache.disk.tier",
    "DEFAULT_LIMIT": "xrt.cache.disk.config",
    "DIRECTORY": "xrt.cache.disk.config",
    "DiskStatistics": "xrt.cache.disk.tier",
    "DiskTier": "xrt.cache.disk.tier",
    "Item": "xrt.cache.disk.store",
    "LIMIT": "xrt.cache.disk.config",
    "SWITCH": "xrt.cache.disk.config",
    "Store": "xrt.cache.disk.store",
    "StoredFailure": "xrt.cache.disk.store",
    "WeightHashStore": "xrt.cache.disk.weight_hashes",
    "find_cache_directory": "xrt.cache.disk.config",
    "open_disk_tier": "xrt.cache.disk.config",
}

__all__ = [*_MODULES]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
