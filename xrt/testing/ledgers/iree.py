"""What iree fails, and why. What its compiler gets wrong by a describable rule, the engine declines (its table of gaps)."""

from xrt.testing.ledgers import Gap

__all__ = ["GAPS"]

GAPS: tuple[Gap, ...] = ()
