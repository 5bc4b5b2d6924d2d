"""The cache of executables: a signature goes in, an executable that was compiled once comes out.

A signature holds everything that can change the result of a compile. However many threads and processes ask for one at
the same time, it is compiled once: executables are kept in memory, and in a directory what engines can save. Nothing here
plans, runs or knows what an executable computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.cache.disk import CompileRequest as CompileRequest
    from xrt.cache.disk import DiskStatistics as DiskStatistics
    from xrt.cache.disk import DiskTier as DiskTier
    from xrt.cache.disk import Store as Store
    from xrt.cache.disk import open_disk_tier as open_disk_tier
    from xrt.cache.memory import CacheStatistics as CacheStatistics
    from xrt.cache.memory import CompileCache as CompileCache
    from xrt.cache.memory import Lease as Lease
    from xrt.cache.memory import Tier as Tier
    from xrt.cache.memory import default_cache as default_cache
    from xrt.cache.memory import open_cache as open_cache
    from xrt.cache.signature import FORMAT_VERSION as FORMAT_VERSION
    from xrt.cache.signature import Signature as Signature
    from xrt.cache.signature import make_signature as make_signature

_MODULES = {
    "CacheStatistics": "xrt.cache.memory",
    "CompileCache": "xrt.cache.memory",
    "CompileRequest": "xrt.cache.disk",
    "DiskStatistics": "xrt.cache.disk",
    "DiskTier": "xrt.cache.disk",
    "FORMAT_VERSION": "xrt.cache.signature",
    "Lease": "xrt.cache.memory",
    "Signature": "xrt.cache.signature",
    "Store": "xrt.cache.disk",
    "Tier": "xrt.cache.memory",
    "default_cache": "xrt.cache.memory",
    "make_signature": "xrt.cache.signature",
    "open_cache": "xrt.cache.memory",
    "open_disk_tier": "xrt.cache.disk",
}

__all__ = [*_MODULES]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
