"""The compile cache: executables by signature, in memory and on disk.

A signature lists everything that can change the result of a compile. Threads and processes that request the same signature
at once share one compile. If the engine can save an executable, it is also stored in a directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.cache.disk import (
        CompileRequest as CompileRequest,
        DiskStatistics as DiskStatistics,
        DiskTier as DiskTier,
        find_cache_directory as find_cache_directory,
        open_disk_tier as open_disk_tier,
        parse_size as parse_size,
    )
    from xrt.cache.memory import (
        CacheStatistics as CacheStatistics,
        CompileCache as CompileCache,
        Lease as Lease,
        Tier as Tier,
        default_cache as default_cache,
        open_cache as open_cache,
    )
    from xrt.cache.records import Records as Records, Store as Store
    from xrt.cache.signature import Signature as Signature, make_signature as make_signature

__all__, __getattr__, __dir__ = load_lazily(__name__)
