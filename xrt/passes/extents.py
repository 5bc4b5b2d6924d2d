"""Symbolic integers: polynomials over dim names, for extents that are computed from other extents."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Quotient:
    """The floor of an extent divided by a positive number."""

    dividend: Extent
    divisor: int

    def __str__(self) -> str:
        return f"(({self.dividend}) // {self.divisor})"


MOST_TERMS = 64
"""Maximum number of terms of a product. Sizes in shapes have a few, but squaring a sum repeatedly would take minutes."""
Atom: TypeAlias = str | Quotient
Monomial: TypeAlias = tuple[Atom, ...]  # a product, sorted by text; the empty product is 1


@dataclass(frozen=True, slots=True)
class Extent:
    """A symbolic size: a polynomial with integer coefficients over dim names and quotients, in normal form.

    The normal form makes equal polynomials compare equal, so that extents can be keys.

    >>> s = Extent.of("s")
    >>> str((s + 3) * 2 - s)
    's + 6'
    """

    terms: tuple[tuple[Monomial, int], ...]  # each a product of atoms and its nonzero coefficient

    @classmethod
    def of(cls, value: int | Atom | Extent) -> Extent:
        """Convert a number, dim name or Quotient to an Extent; an Extent is returned unchanged. Raises TypeError otherwise."""
        if isinstance(value, Extent):
            return value
        # For example None, an unknown element: `propagate` treats the TypeError as an unknown result.
        if not isinstance(value, int | str | Quotient):
            raise TypeError(f"{value!r} is no extent")
        return cls._sum({(): value}) if isinstance(value, int) else cls._sum({(value,): 1})

    @classmethod
    def _sum(cls, factors: Mapping[Monomial, int]) -> Extent:
        terms = [(monomial, factor) for monomial, factor in factors.items() if factor]
        return cls(tuple(sorted(terms, key=lambda term: (-len(term[0]), str(term[0])))))

    def __add__(self, other: Extent | int) -> Extent:
        factors: Counter[Monomial] = Counter(dict(self.terms))
        for monomial, factor in Extent.of(other).terms:
            factors[monomial] += factor
        return self._sum(factors)

    __radd__ = __add__

    def __neg__(self) -> Extent:
        return self * -1

    def __sub__(self, other: Extent | int) -> Extent:
        return self + -other

    def __rsub__(self, other: int) -> Extent:
        return -self + other

    def __mul__(self, other: Extent | int) -> Extent:
        """Multiply. Raises ValueError for more than `MOST_TERMS` terms, or atoms in a term, and for coefficients beyond int64."""
        factors: Counter[Monomial] = Counter()
        for monomial, factor in self.terms:
            for other_monomial, other_factor in Extent.of(other).terms:
                factors[tuple(sorted((*monomial, *other_monomial), key=str))] += factor * other_factor
        is_long = len(factors) > MOST_TERMS or any(len(monomial) > MOST_TERMS for monomial in factors)
        if is_long or any(abs(factor) >= 2**63 for factor in factors.values()):
            raise ValueError("a product of extents is too large")
        return self._sum(factors)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Extent:
        """Divide by a positive number and round down."""
        exact = self.divide(divisor)
        return exact if exact is not None else Extent.of(Quotient(self, divisor))

    def divide(self, other: Extent | int) -> Extent | None:
        """Divide exactly. Return None if that is not provably exact, or if divisor and quotient both have several terms."""
        divisor = Extent.of(other)
        if not divisor.terms:
            return None
        # Divide each term of the dividend. Different terms have different quotients, so none of them must be added up.
        if len(divisor.terms) == 1:
            parts = [_divide_term(term, divisor.terms[0]) for term in self.terms]
            return None if None in parts else self._sum(dict(part for part in parts if part is not None))
        # If the quotient has a single term, it is one of these candidates: the one whose product is the dividend.
        for term in self.terms:
            part = _divide_term(term, divisor.terms[0])
            if part is not None and (quotient := self._sum(dict([part]))) * divisor == self:
                return quotient
        return None

    @property
    def number(self) -> int | None:
        """The value as a number; None if it depends on a dim."""
        if not self.terms:
            return 0
        (monomial, factor), *others = self.terms
        return None if monomial or others else factor

    @property
    def name(self) -> str | None:
        """The dim name if the extent is a single dim, else None."""
        (monomial, factor), *others = self.terms or [((), 0)]
        return monomial[0] if len(monomial) == 1 and factor == 1 and not others and isinstance(monomial[0], str) else None

    @property
    def bounds(self) -> tuple[float, float]:
        """A lower and an upper bound for dims of any size from 0 on; each may be infinite."""
        low = high = 0.0
        for monomial, factor in self.terms:
            least, most = (_find_least(monomial), math.inf) if monomial else (1, 1)
            ends = least * factor, most * factor
            low, high = low + min(ends), high + max(ends)
        return low, high

    @property
    def atoms(self) -> frozenset[str]:
        """Names of the dims that the extent depends on."""
        names: set[str] = set()
        for monomial, _ in self.terms:
            for atom in monomial:
                names |= {atom} if isinstance(atom, str) else atom.dividend.atoms
        return frozenset(names)

    def at(self, sizes: Mapping[str, int]) -> int:
        """Evaluate the extent for these sizes of the dims; raises KeyError for a missing dim."""
        return sum(factor * math.prod(_evaluate(atom, sizes) for atom in monomial) for monomial, factor in self.terms)

    def substitute(self, change: Callable[[str], Extent | None]) -> Extent:
        """Replace each dim for which `change` returns an extent."""
        products = (multiply([Extent.of(factor), *(_substitute(atom, change) for atom in m)]) for m, factor in self.terms)
        return sum(products, Extent.of(0))

    def __str__(self) -> str:
        # Joined with plus signs first, so that "a + -2*b" becomes "a - 2*b".
        shown = " + ".join("*".join([*([str(factor)] if factor != 1 or not m else []), *map(str, m)]) for m, factor in self.terms)
        return shown.replace("+ -1*", "- ").replace("+ -", "- ") or "0"


def multiply(extents: Sequence[Extent]) -> Extent:
    """Multiply extents; the product of none is 1."""
    return math.prod(extents, start=Extent.of(1))


def _find_least(monomial: Monomial) -> float:
    """A lower bound of a product. Dims are at least 0; a quotient may be negative if its dividend may be."""
    lows = [0.0 if isinstance(atom, str) else atom.dividend.bounds[0] for atom in monomial]
    if min(lows) >= 0:
        return 0
    atom = monomial[0]
    if len(monomial) > 1 or not isinstance(atom, Quotient) or math.isinf(lows[0]):
        return -math.inf
    return lows[0] // atom.divisor


def _evaluate(atom: Atom, sizes: Mapping[str, int]) -> int:
    return sizes[atom] if isinstance(atom, str) else atom.dividend.at(sizes) // atom.divisor


def _substitute(atom: Atom, change: Callable[[str], Extent | None]) -> Extent:
    if isinstance(atom, Quotient):
        return atom.dividend.substitute(change) // atom.divisor
    replacement = change(atom)
    return Extent.of(atom) if replacement is None else replacement


def _divide_term(term: tuple[Monomial, int], other: tuple[Monomial, int]) -> tuple[Monomial, int] | None:
    """Divide one term (product of atoms and coefficient) by another; None if the division is not exact."""
    remaining, (atoms, divisor) = list(term[0]), other
    if divisor == 0 or term[1] % divisor:
        return None
    for atom in atoms:
        if atom not in remaining:
            return None
        remaining.remove(atom)
    return tuple(remaining), term[1] // divisor
