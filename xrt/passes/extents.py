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


MAX_TERMS = 64
"""Maximum number of terms in a product of extents. Extents of shapes have few; squaring a sum repeatedly would take minutes."""
Atom: TypeAlias = str | Quotient
Monomial: TypeAlias = tuple[Atom, ...]  # a product, sorted by text; the empty product is 1


@dataclass(frozen=True, slots=True)
class Extent:
    """A symbolic size: a polynomial with integer coefficients over dim names and quotients.

    Polynomials are in normal form, so that equal ones compare equal.

    >>> s = Extent.of("s")
    >>> str((s + 3) * 2 - s)
    's + 6'
    """

    terms: tuple[tuple[Monomial, int], ...]  # (product of atoms, nonzero coefficient) pairs, sorted

    @classmethod
    def of(cls, value: int | Atom | Extent) -> Extent:
        """Convert a number, dim name or Quotient to an Extent; an Extent is returned unchanged. Raises TypeError otherwise."""
        if isinstance(value, Extent):
            return value
        # None is an unknown element: `propagate` treats the TypeError as an unknown result.
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
        """Multiply. Raises ValueError for more than `MAX_TERMS` terms or atoms per term, and for a coefficient beyond int64."""
        factors: Counter[Monomial] = Counter()
        for monomial, factor in self.terms:
            for other_monomial, other_factor in Extent.of(other).terms:
                factors[tuple(sorted((*monomial, *other_monomial), key=str))] += factor * other_factor
        is_long = len(factors) > MAX_TERMS or any(len(monomial) > MAX_TERMS for monomial in factors)
        if is_long or any(abs(factor) >= 2**63 for factor in factors.values()):
            raise ValueError("a product of extents is too large")
        return self._sum(factors)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Extent:
        exact = self.divide(divisor)
        return exact if exact is not None else Extent.of(Quotient(self, divisor))

    def divide(self, other: Extent | int) -> Extent | None:
        """Divide without remainder. Return None if there is a remainder, or if divisor and quotient both have several terms."""
        divisor = Extent.of(other)
        if not divisor.terms:
            return None
        quotients = [_divide_term(term, divisor.terms[0]) for term in self.terms]
        # By a single term, divide each term of the dividend. Different terms have different quotients.
        if len(divisor.terms) == 1:
            return None if None in quotients else self._sum(dict(term for term in quotients if term is not None))
        # Otherwise try quotients of a single term: the first term of the divisor times the quotient is a term of the dividend.
        for quotient in quotients:
            if quotient is not None and (candidate := self._sum(dict([quotient]))) * divisor == self:
                return candidate
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
        monomial, factor = self.terms[0] if len(self.terms) == 1 else ((), 0)
        is_single_atom = len(monomial) == 1 and factor == 1
        return monomial[0] if is_single_atom and isinstance(monomial[0], str) else None

    @property
    def bounds(self) -> tuple[float, float]:
        """A lower and an upper bound if dims may have any size from 0 on; a bound may be infinite."""
        low = high = 0.0
        for monomial, factor in self.terms:
            # The empty product is 1; no other product has an upper bound. A negative factor exchanges the bounds.
            bounds = (_find_lower_bound(monomial), math.inf) if monomial else (1, 1)
            scaled = [bound * factor for bound in bounds]
            low, high = low + min(scaled), high + max(scaled)
        return low, high

    @property
    def atoms(self) -> frozenset[str]:
        """Names of the dims that the extent depends on."""
        names: set[str] = set()
        for monomial, _ in self.terms:
            for atom in monomial:
                names |= {atom} if isinstance(atom, str) else atom.dividend.atoms
        return frozenset(names)

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Compute the number for these sizes of the dims; raises KeyError for a missing dim."""
        return sum(factor * math.prod(_evaluate(atom, sizes) for atom in monomial) for monomial, factor in self.terms)

    def substitute(self, change: Callable[[str], Extent | None]) -> Extent:
        """Replace each dim for which ``change`` returns an Extent."""
        total = Extent.of(0)
        for monomial, factor in self.terms:
            atoms = [_substitute(atom, change) for atom in monomial]
            total += multiply([Extent.of(factor), *atoms])
        return total

    def __str__(self) -> str:
        terms = []
        for monomial, factor in self.terms:
            coefficient = [] if factor == 1 and monomial else [str(factor)]
            terms.append("*".join([*coefficient, *map(str, monomial)]))
        # "a + -2*b" becomes "a - 2*b".
        return " + ".join(terms).replace("+ -1*", "- ").replace("+ -", "- ") or "0"


def multiply(extents: Sequence[Extent]) -> Extent:
    return math.prod(extents, start=Extent.of(1))


def _find_lower_bound(monomial: Monomial) -> float:
    """Find a lower bound of a product. Dims are at least 0; a quotient is negative if its dividend is."""
    lower_bounds = [0.0 if isinstance(atom, str) else atom.dividend.bounds[0] for atom in monomial]
    if min(lower_bounds) >= 0:
        return 0
    atom = monomial[0]
    if len(monomial) > 1 or not isinstance(atom, Quotient) or math.isinf(lower_bounds[0]):
        return -math.inf
    return lower_bounds[0] // atom.divisor


def _evaluate(atom: Atom, sizes: Mapping[str, int]) -> int:
    return sizes[atom] if isinstance(atom, str) else atom.dividend.evaluate(sizes) // atom.divisor


def _substitute(atom: Atom, change: Callable[[str], Extent | None]) -> Extent:
    if isinstance(atom, Quotient):
        return atom.dividend.substitute(change) // atom.divisor
    replacement = change(atom)
    return Extent.of(atom) if replacement is None else replacement


def _divide_term(term: tuple[Monomial, int], other: tuple[Monomial, int]) -> tuple[Monomial, int] | None:
    """Divide a term by another, both (product of atoms, coefficient) pairs; None if there is a remainder."""
    (dividend_atoms, dividend), (divisor_atoms, divisor) = term, other
    if divisor == 0 or dividend % divisor:
        return None
    atoms = list(dividend_atoms)
    for atom in divisor_atoms:
        if atom not in atoms:
            return None
        atoms.remove(atom)
    return tuple(atoms), dividend // divisor
