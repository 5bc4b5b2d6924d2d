"""Patterns that select nodes by operator or by name: ``Conv|Gemm``, ``name:/layer1/*``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Self

from xrt.errors import OptionError

if TYPE_CHECKING:
    from xrt.graph.node import Node

__all__ = ["OPERATOR", "NodePattern", "compile_patterns"]

OPERATOR = re.compile(r"[\w.*?-]+")
"""The form of a pattern of operators."""
_HELP = "a pattern reads like 'Conv|Gemm' or 'name:/layer1/*'"


@lru_cache(maxsize=64)
def compile_patterns(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return an expression for texts that match one of the patterns wholly; ``*`` is any text and ``?`` one character."""
    return re.compile("|".join(map(_expression, patterns)), re.DOTALL)


def _expression(pattern: str) -> str:
    """Return the pattern as a regular expression that takes at most the product of both lengths to match.

    The text between two stars is sought from left to right without a retry: the first match is as good as any.
    """
    first, *others = (re.escape(part).replace(r"\?", ".") for part in re.split(r"\*+", pattern))
    if not others:
        return first
    return first + "".join(f"(?>.*?{part})" for part in others[:-1]) + f".*{others[-1]}"


@dataclass(frozen=True, slots=True)
class NodePattern:
    """Nodes by operator, or by name.

    >>> NodePattern.parse("name:/layer1/*|/head")
    NodePattern(patterns=('/layer1/*', '/head'), by_name=True)
    """

    patterns: tuple[str, ...]
    """A node matches if one of them matches wholly."""
    by_name: bool = False
    """Whether they are matched with `Node.name`; otherwise with `Node.op`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the pattern that the text spells, as in a pin; raises OptionError where it spells none."""
        before, prefix, names = text.partition("name:")
        by_name = bool(prefix) and not before.strip()
        patterns = tuple(p.strip() for p in (names if by_name else text).split("|"))
        if not all(patterns):
            raise OptionError(f"{text!r} is not a pattern of nodes; {_HELP}")
        if not by_name and (wrong := [p for p in patterns if not OPERATOR.fullmatch(p)]):
            raise OptionError(f"{wrong[0]!r} is no operator (letters, digits, '.', '*' and '?'); {_HELP}")
        return cls(patterns, by_name)

    def matches(self, node: Node) -> bool:
        """Whether the pattern selects the node."""
        return compile_patterns(self.patterns).fullmatch(node.name if self.by_name else node.op) is not None

    def __str__(self) -> str:
        return f"{'name:' * self.by_name}{'|'.join(self.patterns)}"
