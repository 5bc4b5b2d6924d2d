"""Serving configurations, as stored in placement files and bundles."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from xrt.errors import BundleError

__all__ = ["ServingRecord", "ServingRow", "parse_serving", "spell_serving"]

Text: TypeAlias = Annotated[str, Meta(max_length=4000)]
Number: TypeAlias = Annotated[float, Meta(ge=0, le=1e15)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 20)]
Bytes: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]


class ServingRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One point of the sweep; `xrt.placement.throughput.result.ServingCandidate` documents the fields."""

    batch: Count
    instances: Count
    threads: Count
    concurrency: Count
    verdict: Text
    plan: Text = ""
    rate: Number | None = None
    p50: Number | None = None
    p99: Number | None = None
    memory: Bytes | None = None
    note: Text = ""

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain data."""
        return msgspec.structs.asdict(self)


class ServingRecord(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A serving configuration and its sweep; `xrt.placement.throughput.result` documents the fields."""

    batch: Count
    instances: Count
    threads: Count
    concurrency: Count
    rate: Number
    p50: Number
    p99: Number
    bound: Number | None = None
    """None if latency was not limited."""
    dim: Text = ""
    sizes: tuple[Count, ...] = ()
    plans: tuple[Text, ...] = ()
    memory: Bytes = 0
    rows: Annotated[tuple[ServingRow, ...], Meta(max_length=512)] = ()

    def __post_init__(self) -> None:
        if self.sizes and (self.sizes[0] != 1 or self.sizes[-1] != self.batch or sorted(set(self.sizes)) != list(self.sizes)):
            raise ValueError("needs sizes that ascend from 1 to the batch")


def spell_serving(record: ServingRecord | None) -> str:
    """Serialize a record; None becomes the empty string."""
    return "" if record is None else msgspec.json.encode(record).decode()


def parse_serving(text: Any) -> ServingRecord | None:
    """Parse a record; None for the empty string. Raises BundleError if it is invalid."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=ServingRecord)
    except (msgspec.MsgspecError, UnicodeEncodeError, TypeError, RecursionError) as error:
        raise BundleError(f"its serving configuration cannot be read: {error}") from None
