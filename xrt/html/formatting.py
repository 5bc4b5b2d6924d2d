"""Figures as a person reads them."""

from __future__ import annotations

from xrt.measure.statistics import Interval, RatioInterval

__all__ = [
    "format_count",
    "format_list",
    "format_ratio_interval",
    "format_seconds_interval",
    "percent",
    "seconds",
    "size",
    "times",
]

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def seconds(value: float) -> str:
    """Return a time with three digits.

    >>> seconds(0.0027149), seconds(12.0), seconds(3.2e-6), seconds(0)
    ('2.71 ms', '12 s', '3.2 µs', '0 µs')
    """
    scale, unit = _unit(value)
    return f"{_digits(value / scale)} {unit}"


def format_seconds_interval(value: float, interval: Interval | None) -> str:
    """Return a time with its interval, in one unit.

    >>> format_seconds_interval(0.0027149, Interval(0.00268, 0.0031))
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


def format_ratio_interval(ratio: RatioInterval | None) -> str:
    """Return a ratio with its interval; nothing for None.

    >>> format_ratio_interval(RatioInterval(1.5, 1.25, 1.75))
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

    >>> size(3_200_000), size(12), size(1)
    ('3.2 MB', '12 bytes', '1 byte')
    """
    value, units = float(count), iter(("kB", "MB", "GB", "TB"))
    if count < 1000:
        return format_count(count, "byte")
    while value >= 1000 and (unit := next(units, None)):
        value, name = value / 1000, unit
    return f"{value:,.1f} {name}"


def format_count(count: int, noun: str) -> str:
    """Return a number and what is counted.

    >>> format_count(1, "round"), format_count(20, "round")
    ('1 round', '20 rounds')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def format_list(words: list[str]) -> str:
    """Return words as a sentence lists them.

    >>> format_list(["a"]), format_list(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(words[:-1]), *words[-1:]] if len(words) > 1 else words)


def _unit(value: float) -> tuple[float, str]:
    return next(((scale, unit) for scale, unit in UNITS if abs(value) >= scale), UNITS[-1])


def _digits(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
