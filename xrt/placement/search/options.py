"""How far the planner goes."""

from __future__ import annotations

from dataclasses import dataclass, fields

from xrt.errors import OptionError

__all__ = ["SearchOptions"]


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Bounds of the search, all of them counts, so that the same table gives the same plans on every machine.

    Raises OptionError for a bound below 1.
    """

    pieces: int = 96
    """The most parts that are asked to be measured in one round."""
    plans: int = 8
    """The most plans that are proposed."""
    grain: int = 128
    """The most parts that a model is divided into; nodes beyond that are moved together."""
    effort: int = 40_000
    """How many nodes may be hashed in order to look regions up in the table; beyond that they are estimated."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptionError(f"{field.name} must be an integer of at least 1; got {value!r}")
