"""Which values are observed together: so many that a run does not hold too many bytes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xrt.graph import Function, TensorType

__all__ = ["group_by_bytes"]

MOST_BYTES = 256 << 20
"""Values of more bytes than this are observed in several runs of the model."""
UNKNOWN_BYTES = 8 << 20
"""What a value of unknown extents counts."""


def group_by_bytes(names: Sequence[str], function: Function) -> Iterator[tuple[str, ...]]:
    """Yield names together whose values take no more than `MOST_BYTES`, where their sizes are known."""
    group: list[str] = []
    size = 0
    for name in names:
        type_ = function.get_type(name)
        own = (type_.nbytes if isinstance(type_, TensorType) else None) or UNKNOWN_BYTES
        if group and size + own > MOST_BYTES:
            yield tuple(group)
            group, size = [], 0
        group.append(name)
        size += own
    if group:
        yield tuple(group)
