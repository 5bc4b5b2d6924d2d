"""Extents as polynomials over named dims: what a size is in terms of the sizes that inputs have."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["ONE", "Axis", "Extent", "Quotient", "multiply"]


@dataclass(frozen=True, slots=True)
class Quotient:
    """An extent divided by a number, rounded down."""

    dividend: Extent
    divisor: int

    def __str__(self) -> str:
        return f"(({self.dividend}) // {self.divisor})"


Atom: TypeAlias = str | Quotient
Monomial: TypeAlias = tuple[Atom, ...]


@dataclass(frozen=True, slots=True)
class Extent:
    """A polynomial with integer coefficients over names of dims and over quotients; equal extents are equal values.

    >>> s = Extent.of("s")
    >>> str((s + Extent.of(3)) * Extent.of(2) - s)
    's + 6'
    """

    terms: tuple[tuple[Monomial, int], ...]

    @classmethod
    def of(cls, value: int | Atom) -> Extent:
        """Return the extent that is a number, a named dim or a quotient."""
        return cls._sum({(): value}) if isinstance(value, int) else cls._sum({(value,): 1})

    @classmethod
    def _sum(cls, terms: Mapping[Monomial, int]) -> Extent:
        kept = [(monomial, factor) for monomial, factor in terms.items() if factor]
        return cls(tuple(sorted(kept, key=lambda term: (-len(term[0]), str(term[0])))))

    def __add__(self, other: Extent) -> Extent:
        found: Counter[Monomial] = Counter(dict(self.terms))
        for monomial, factor in other.terms:
            found[monomial] += factor
        return self._sum(found)

    def __sub__(self, other: Extent) -> Extent:
        return self + other * Extent.of(-1)

    def __mul__(self, other: Extent) -> Extent:
        found: Counter[Monomial] = Counter()
        for one, left in self.terms:
            for two, right in other.terms:
                found[tuple(sorted((*one, *two), key=str))] += left * right
        return self._sum(found)

    def __floordiv__(self, divisor: int) -> Extent:
        """Return the extent divided by a number from 1 on, rounded down."""
        exact = self.divide(Extent.of(divisor))
        return exact if exact is not None else Extent.of(Quotient(self, divisor))

    def divide(self, other: Extent) -> Extent | None:
        """Return the quotient where it is a monomial, or the divisor is one; None where the division is not seen to be exact."""
        if not other.terms:
            return None
        if len(other.terms) == 1:
            parts = [_divide_term(term, other.terms[0]) for term in self.terms]
            return None if None in parts else self._sum(dict(part for part in parts if part is not None))
        for term in self.terms:
            part = _divide_term(term, other.terms[0])
            if part is not None and (quotient := self._sum(dict([part]))) * other == self:
                return quotient
        return None

    @property
    def number(self) -> int | None:
        """The number that it is; None where it depends on a dim."""
        if not self.terms:
            return 0
        (monomial, factor), *more = self.terms
        return None if monomial or more else factor

    @property
    def atoms(self) -> frozenset[str]:
        """The names of dims that it depends on."""
        found: set[str] = set()
        for monomial, _ in self.terms:
            for atom in monomial:
                found |= {atom} if isinstance(atom, str) else atom.dividend.atoms
        return frozenset(found)

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return the number for these sizes of the dims; raises KeyError for a dim that has none."""
        return sum(factor * math.prod(_evaluate(atom, sizes) for atom in monomial) for monomial, factor in self.terms)

    def substitute(self, change: Callable[[str], Extent | None]) -> Extent:
        """Return the extent with named dims replaced where the function returns an extent for them."""
        total = Extent.of(0)
        for monomial, factor in self.terms:
            product = Extent.of(factor)
            for atom in monomial:
                product *= _substitute(atom, change)
            total += product
        return total

    def __str__(self) -> str:
        shown = " + ".join("*".join([*([str(factor)] if factor != 1 or not m else []), *map(str, m)]) for m, factor in self.terms)
        return shown.replace("+ -1*", "- ").replace("+ -", "- ") or "0"


Axis: TypeAlias = tuple[Extent, ...]
"""The extents that make up one axis, outermost first; several where a reshape has merged a padded one with others."""

ONE: Axis = (Extent.of(1),)


def multiply(axis: Axis) -> Extent:
    """Return the product of extents."""
    product = Extent.of(1)
    for part in axis:
        product *= part
    return product


def _evaluate(atom: Atom, sizes: Mapping[str, int]) -> int:
    return sizes[atom] if isinstance(atom, str) else atom.dividend.at(sizes) // atom.divisor


def _substitute(atom: Atom, change: Callable[[str], Extent | None]) -> Extent:
    if isinstance(atom, Quotient):
        return atom.dividend.substitute(change) // atom.divisor
    found = change(atom)
    return Extent.of(atom) if found is None else found


def _divide_term(term: tuple[Monomial, int], other: tuple[Monomial, int]) -> tuple[Monomial, int] | None:
    """Return one term divided by another; None where that is not exact."""
    rest, (wanted, divisor) = list(term[0]), other
    if divisor == 0 or term[1] % divisor:
        return None
    for atom in wanted:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest), term[1] // divisor
