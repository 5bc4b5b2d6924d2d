"""What the sections of a placement file are made of: records that msgspec checks, and the types of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

import msgspec
from msgspec import Meta, Struct

__all__ = ["MOST_TEXT", "Count", "Facts", "Key", "Number", "Record", "SelectionOutcome", "Text", "Word"]

MOST_TEXT = 4000
"""The most characters of a text: a name, a version, a note."""

Text: TypeAlias = Annotated[str, Meta(max_length=MOST_TEXT)]
Word: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MOST_TEXT)]
Facts: TypeAlias = Mapping[Text, Text]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=10_000_000)]
Number: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
Key: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]

SelectionOutcome: TypeAlias = Literal["won", "tie", "lost", "wrong", "failed"]


class Record(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What has a place in the file."""

    def replace(self, **changes: Any) -> Self:
        """Return the record with other values of some fields."""
        return msgspec.structs.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        return {name: msgspec.to_builtins(getattr(self, name)) for name in self.__struct_fields__}
