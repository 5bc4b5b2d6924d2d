"""The cache of executables: a signature goes in, an executable that was compiled once comes out.

A signature holds everything that can change the result of a compile. However many threads and processes ask for one at
the same time, it is compiled once: executables are kept in memory, and in a directory what engines can save. Nothing here
plans, runs or knows what an executable computes.
"""

from xrt.cache.disk import DiskStatistics, DiskTier, Recipe, Store, tier_of
from xrt.cache.memory import CacheStatistics, CompileCache, Lease, Tier, cache_of, default_cache
from xrt.cache.signature import FORMAT_VERSION, Signature, signature_of

__all__ = [
    "FORMAT_VERSION",
    "CacheStatistics",
    "CompileCache",
    "DiskStatistics",
    "DiskTier",
    "Lease",
    "Recipe",
    "Signature",
    "Store",
    "Tier",
    "cache_of",
    "default_cache",
    "signature_of",
    "tier_of",
]
