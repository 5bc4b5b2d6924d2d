"""A histogram of magnitudes that streams: its limit doubles, by powers of two, so that the order of the data does not matter."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

__all__ = ["BINS", "MagnitudeHistogram"]

Array: TypeAlias = np.ndarray[Any, Any]

BINS = 2048


class MagnitudeHistogram:
    """How many numbers have a magnitude in each of equal bins from 0 to `limit`, a power of two; zeros are counted separately.

    Where a larger number comes, the limit doubles and neighbors are added up, so the counts are those of the final limit for all
    data. At least half of the bins are in use.
    """

    def __init__(self) -> None:
        self.counts: Array = np.zeros(BINS, np.int64)
        self.zeros = 0
        self.limit = 0.0
        """Above all magnitudes; 0 where all numbers were zeros."""

    def add(self, numbers: Array) -> None:
        """Count finite numbers. Linear."""
        magnitudes = np.abs(numbers.reshape(-1).astype(np.float64))
        magnitudes = magnitudes[magnitudes > 0]
        self.zeros += numbers.size - magnitudes.size
        if magnitudes.size:
            self._reach(float(magnitudes.max()))
            self.counts += np.bincount((magnitudes * (BINS / self.limit)).astype(np.int64), minlength=BINS)

    def _reach(self, largest: float) -> None:
        """Raise the limit above a magnitude."""
        limit = math.ldexp(1.0, math.frexp(largest)[1])
        if not self.limit:
            self.limit = limit
        while self.limit < limit:
            halved = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.concatenate([halved, np.zeros(BINS // 2, np.int64)])
            self.limit *= 2

    @property
    def total(self) -> int:
        """All numbers, zeros included."""
        return int(self.counts.sum()) + self.zeros

    @property
    def width(self) -> float:
        """Of a bin."""
        return self.limit / BINS
