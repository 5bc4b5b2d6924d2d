"""The cache of executables: a signature goes in, an executable that was compiled once comes out.

A signature holds everything that can change the result of a compile. However many threads ask for one at the same
time, it is compiled once. Nothing here plans, runs or knows what an executable computes.
"""

from xrt.cache.memory import CacheStatistics, CompileCache, Lease, default_cache
from xrt.cache.signature import FORMAT_VERSION, Signature, signature_of

__all__ = ["FORMAT_VERSION", "CacheStatistics", "CompileCache", "Lease", "Signature", "default_cache", "signature_of"]
