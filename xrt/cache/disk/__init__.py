"""The disk tier: executables and related data shared by processes.

An entry is a file named by the hash of its signature. It is written atomically, has checksums, and contains only data for the
engine that wrote it, never Python code. Problems with files cost a compile and a warning, never a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import list_names, load_lazily

if TYPE_CHECKING:
    from xrt.cache.disk.config import (
        DEFAULT_LIMIT as DEFAULT_LIMIT,
        DIRECTORY as DIRECTORY,
        LIMIT as LIMIT,
        SWITCH as SWITCH,
        find_cache_directory as find_cache_directory,
        open_disk_tier as open_disk_tier,
    )
    from xrt.cache.disk.store import CacheEntry as CacheEntry, Item as Item, Store as Store, StoredFailure as StoredFailure
    from xrt.cache.disk.tier import CompileRequest as CompileRequest, DiskStatistics as DiskStatistics, DiskTier as DiskTier
    from xrt.cache.disk.weight_hashes import WeightHashStore as WeightHashStore

_MODULES = {
    "xrt.cache.disk.config": ("DEFAULT_LIMIT", "DIRECTORY", "LIMIT", "SWITCH", "find_cache_directory", "open_disk_tier"),
    "xrt.cache.disk.store": ("CacheEntry", "Item", "Store", "StoredFailure"),
    "xrt.cache.disk.tier": ("CompileRequest", "DiskStatistics", "DiskTier"),
    "xrt.cache.disk.weight_hashes": ("WeightHashStore",),
}

__all__ = [*list_names(_MODULES)]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
