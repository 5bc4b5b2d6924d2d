"""What is tuned for throughput, and on which terms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xrt.errors import OptionError

__all__ = ["BATCHES", "Split", "ThroughputRequest", "list_splits", "parse_batches", "parse_bound"]

BATCHES = (1, 2, 4, 8, 16, 32)
MOST_SIZES = 16
LARGEST = 1 << 16


@dataclass(frozen=True, slots=True, order=True)
class Split:
    """How the thread budget is divided."""

    instances: int
    threads: int
    """Of each instance."""

    def __str__(self) -> str:
        """Return it in words.

        >>> str(Split(2, 1)), str(Split(1, 4))
        ('2 instances of 1 thread', '1 instance of 4 threads')
        """
        return f"{self.instances} instance{'s' * (self.instances != 1)} of {self.threads} thread{'s' * (self.threads != 1)}"


@dataclass(frozen=True, slots=True)
class ThroughputRequest:
    """A sweep for the configuration with the highest rate within a bound."""

    splits: tuple[Split, ...]
    batches: tuple[int, ...] = BATCHES
    """Batch sizes, ascending from 1."""
    bound: float = math.inf
    """Seconds that the 99th percentile of the latency may take."""
    budget: float = 60.0


def list_splits(threads: int, instances: Sequence[int] | None = None) -> tuple[Split, ...]:
    """Return the ways to divide a thread budget: each number of instances with all the threads that it leaves for each.

    Without numbers these are 1, 2, 4 and so on, and as many as there are threads. Raises OptionError for a number that the budget
    does not allow.

    >>> [str(one) for one in list_splits(6)]
    ['1 instance of 6 threads', '2 instances of 3 threads', '4 instances of 1 thread', '6 instances of 1 thread']
    """
    if instances is None:
        powers = [1 << number for number in range(threads.bit_length()) if 1 << number <= threads]
        instances = sorted({*powers, threads})
    numbers = _parse_numbers("instances", instances)
    if numbers[-1] > threads:
        raise OptionError(
            f"instances={numbers[-1]} needs a thread for each, and the thread budget is {threads}; ask for at most {threads} "
            f"instances, or raise threads="
        )
    return tuple(Split(number, threads // number) for number in numbers)


def parse_batches(asked: Sequence[int]) -> tuple[int, ...]:
    """Return batch sizes, ascending; 1 is always among them, for the request that comes alone. Raises OptionError."""
    return tuple(sorted({1, *_parse_numbers("batches", asked)}))


def _parse_numbers(name: str, asked: Any) -> tuple[int, ...]:
    several = tuple(asked) if isinstance(asked, list | tuple | range | set) else (asked,)
    if not several or not all(type(one) is int and 0 < one <= LARGEST for one in several):
        raise OptionError(f"{name} must be positive integers, such as {name}=(1, 2, 4); got {asked!r}")
    if len(set(several)) > MOST_SIZES:
        raise OptionError(f"{name} has {len(set(several))} numbers, each of which is measured; at most {MOST_SIZES} can be")
    return tuple(sorted(set(several)))


def parse_bound(asked: Any) -> float:
    """Return the bound on the latency in seconds, infinite for None; raises OptionError for no positive number."""
    if asked is None:
        return math.inf
    if isinstance(asked, bool) or not isinstance(asked, int | float) or not asked > 0:
        raise OptionError(f"p99 must be a positive number of seconds, such as p99=0.020, or None; got {asked!r}")
    return float(asked)
