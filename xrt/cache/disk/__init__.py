"""The disk tier: what one process has compiled, the next one loads.

A signature and a way to compile come in, an executable goes out: read from an entry, or compiled and written to one. An
entry is a file named by its signature's hash; it is written whole or not at all, carries checksums, and is data for the
engine that wrote it, never code of Python's. Whatever goes wrong with files costs a compile and a warning, never a run.
"""

from xrt.cache.disk.entry import Entry, Failure
from xrt.cache.disk.places import DEFAULT_LIMIT, DIRECTORY, LIMIT, SWITCH, directory_of, tier_of
from xrt.cache.disk.store import Item, Store
from xrt.cache.disk.tier import DiskStatistics, DiskTier, Recipe
from xrt.cache.disk.weights import WeightsMemo

__all__ = [
    "DEFAULT_LIMIT",
    "DIRECTORY",
    "LIMIT",
    "SWITCH",
    "DiskStatistics",
    "DiskTier",
    "Entry",
    "Failure",
    "Item",
    "Recipe",
    "Store",
    "WeightsMemo",
    "directory_of",
    "tier_of",
]
