"""Figures as a person reads them."""

from __future__ import annotations

from rich.filesize import decimal

from xrt.bench.figures import Interval
from xrt.runtime.rounds import Ratio

__all__ = ["counted", "listed", "percent", "seconds", "seconds_within", "size", "times", "times_within"]

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def seconds(value: float) -> str:
    """Return a time with three digits.

    >>> seconds(0.0027149), seconds(12.0), seconds(3.2e-6), seconds(0)
    ('2.71 ms', '12 s', '3.2 µs', '0 µs')
    """
    scale, unit = _unit(value)
    return f"{_digits(value / scale)} {unit}"


def seconds_within(value: float, interval: Interval | None) -> str:
    """Return a time with its interval, in one unit.

    >>> seconds_within(0.0027149, Interval(0.00268, 0.0031))
    '2.71 ms (2.68 to 3.1)'
    """
    if interval is None:
        return seconds(value)
    scale, _ = _unit(value)
    return f"{seconds(value)} ({_digits(interval.low / scale)} to {_digits(interval.high / scale)})"


def times(ratio: float) -> str:
    """Return a ratio: with two digits behind the point where it is near one, with three in all elsewhere.

    >>> times(1.0249), times(93.46), times(1234.5)
    ('1.02', '93.5', '1234')
    """
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}" if ratio < 100 else f"{ratio:.0f}"


def times_within(ratio: Ratio | None) -> str:
    """Return a ratio with its interval; nothing for None.

    >>> times_within(Ratio(1.5, 1.25, 1.75))
    '1.50 (1.25 to 1.75)'
    """
    return "" if ratio is None else f"{times(ratio.median)} ({times(ratio.low)} to {times(ratio.high)})"


def percent(share: float) -> str:
    r"""Return a share in per cent; the sign stays with its number.

    >>> percent(0.0123), percent(0.52)
    ('1.2\xa0%', '52\xa0%')
    """
    return f"{100 * share:.2g}\u00a0%" if share < 0.1 else f"{100 * share:.0f}\u00a0%"


def size(count: int) -> str:
    """Return a count of bytes in decimal units.

    >>> size(3_200_000)
    '3.2 MB'
    """
    return decimal(count)


def counted(count: int, noun: str) -> str:
    """Return a number and what is counted.

    >>> counted(1, "round"), counted(20, "round")
    ('1 round', '20 rounds')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def listed(words: list[str]) -> str:
    """Return words as a sentence lists them.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(words[:-1]), *words[-1:]] if len(words) > 1 else words)


def _unit(value: float) -> tuple[float, str]:
    return next(((scale, unit) for scale, unit in UNITS if abs(value) >= scale), UNITS[-1])


def _digits(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
