"""Which engine takes which node of a signature: asked, or remembered from an earlier process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from xrt.cache import CompileCache, DiskTier
from xrt.errors import CacheError
from xrt.partition import SupportMatrix
from xrt.placement.result import unwrap

if TYPE_CHECKING:
    from xrt.graph import Function
    from xrt.placement.engine_list import EngineList

__all__ = ["SupportCache", "try_or_warn"]


WORTHWHILE = 0.1
"""Seconds that the answers must have cost to be written down."""
T = TypeVar("T")


class SupportCache:
    """The engines' answers about one Function; they are asked once, however often it is planned."""

    def __init__(self, whole: Callable[[], Function], engines: EngineList, cache: CompileCache) -> None:
        self._whole = whole
        self._engines = engines
        self._tier = cache.disk if isinstance(cache.disk, DiskTier) else None
        self._seconds = 0.0

    @cached_property
    def capability(self) -> SupportMatrix:
        """The answers."""
        function, asked, homes = self._whole(), unwrap(self._engines.engines), self._homes
        context, tier = self._engines.context, self._tier
        known = try_or_warn(tier, lambda: tier.answers.recall(function, asked, homes, context)) if tier else None
        if known is not None:
            return known
        began = perf_counter()
        found = SupportMatrix.of(function, asked, homes)
        self._seconds = perf_counter() - began
        return found

    @property
    def _homes(self) -> list[str]:
        homes = self._engines.homes
        return [homes.of(engine.spec) for engine in self._engines.engines]

    def keep(self) -> None:
        """Write the answers down, where asking was work; to be called when the weights have been hashed anyway."""
        tier, seconds, self._seconds = self._tier, self._seconds, 0.0
        if tier is None or seconds < WORTHWHILE:
            return
        function, asked, context = self._whole(), unwrap(self._engines.engines), self._engines.context
        try_or_warn(tier, lambda: tier.answers.keep(self.capability, function, asked, self._homes, context))


def try_or_warn(tier: DiskTier, what: Callable[[], T]) -> T | None:
    """Return what comes of it; None, with a warning, where the tier's files are in the way."""
    try:
        return what()
    except (OSError, CacheError) as error:
        tier.trouble(str(error))
        return None
