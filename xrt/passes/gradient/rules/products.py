"""Products of matrices and tensors; Giles, *Collected matrix derivative results* (2008), 2.2."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import TYPE_CHECKING

from xrt.builder.record_op import emit
from xrt.passes.gradient.table import RuleContext, rule
from xrt.passes.gradient.tensors import add_axes, expand_to, integers, reshape_to, sum_to, transpose

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

Gradients = Sequence["Tensor | None"]


def _swap(x: Tensor) -> Tensor:
    """Return the matrices transposed."""
    rank = x.ndim
    return transpose(x, [*range(rank - 2), rank - 1, rank - 2])


def _as_rows(x: Tensor) -> Tensor:
    """Return a stack of matrices as one matrix with all their rows."""
    last = x.shape[-1]
    columns = integers(last) if isinstance(last, int) else emit("Shape", x, start=-1)
    if isinstance(last, int) and last != 0:
        return emit("Reshape", x, integers(-1, last))
    leading = emit("ReduceProd", emit("Shape", x, end=-1), keepdims=1)
    return emit("Reshape", x, emit("Concat", leading, columns, axis=0), allowzero=1)


@rule("MatMul")
def multiply_matrices(at: RuleContext) -> Gradients:
    """C = A B: dA = G B', dB = A' G, summed over the axes of stacks along which a matrix was repeated."""
    a, b, g = at.input(0), at.input(1), at.g
    ranks = at.rank(a), at.rank(b)
    left = add_axes(a, 0) if ranks[0] == 1 else a
    right = add_axes(b, 1) if ranks[1] == 1 else b
    if ranks[1] == 1:
        g = add_axes(g, -1)
    if ranks[0] == 1:
        g = add_axes(g, -2)
    first = second = None
    if at.wants(0):
        first = reshape_to(sum_to(emit("MatMul", g, _swap(right)), left), a)
    if at.wants(1) and ranks[1] == 2 and ranks[0] > 2:
        second = emit("MatMul", _swap(_as_rows(left)), _as_rows(g))
    elif at.wants(1):
        second = reshape_to(sum_to(emit("MatMul", _swap(left), g), right), b)
    return first, second


@rule("Gemm")
def multiply_and_add(at: RuleContext) -> Gradients:
    """Y = alpha A' B' + beta C, each factor transposed or not: the products of MatMul, transposed likewise."""
    a, b, g = at.input(0), at.input(1), at.g
    alpha, beta, ta, tb = at.attr("alpha", 1.0), at.attr("beta", 1.0), at.attr("transA", 0), at.attr("transB", 0)
    first = second = third = None
    if at.wants(0):
        first = emit("Gemm", b, g, alpha=alpha, transA=tb, transB=1) if ta else emit("Gemm", g, b, alpha=alpha, transB=1 - tb)
    if at.wants(1):
        second = emit("Gemm", g, a, alpha=alpha, transA=1, transB=ta) if tb else emit("Gemm", a, g, alpha=alpha, transA=1 - ta)
    if at.wants(2):
        third = sum_to(g if beta == 1 else g * beta, at.input(2))
    return first, second, third


@rule("Einsum")
def contract(at: RuleContext) -> Gradients:
    """The gradient of a factor is the contraction of the result's gradient with the other factors, to the factor's indices.

    Indices of the factor that occur nowhere else were summed alone: along them the gradient is repeated.
    """
    operands = [at.input(i) for i in range(len(at.node.inputs))]
    terms, result = _read_equation(at, [at.rank(operand) for operand in operands])
    for term in (*terms, result):
        if len(set(term)) < len(term):
            at.refuse(f"the indices {term!r} of its equation repeat one, and the rule is for equations without diagonals")
    return tuple(
        _contract_others(at, terms, result, operands, index) if at.wants(index) else None for index in range(len(operands))
    )


def _contract_others(at: RuleContext, terms: list[str], result: str, operands: list[Tensor], index: int) -> Tensor:
    others = [k for k in range(len(operands)) if k != index]
    known = set(result).union(*(terms[k] for k in others))
    kept = "".join(letter for letter in terms[index] if letter in known)
    equation = ",".join([result, *(terms[k] for k in others)]) + "->" + kept
    found = emit("Einsum", at.g, *(operands[k] for k in others), equation=equation)
    missing = [place for place, letter in enumerate(terms[index]) if letter not in known]
    if missing:
        return expand_to(add_axes(found, *missing), operands[index])
    return sum_to(found, operands[index])


def _read_equation(at: RuleContext, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the indices of the operands and of the result, with letters in the place of ellipses."""
    equation = at.attr("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    free = [letter for letter in ascii_letters if letter not in equation]
    counts = [rank - len(term.replace("...", "")) if "..." in term else 0 for rank, term in zip(ranks, terms, strict=True)]
    if max(counts) > len(free):
        at.refuse("its equation has more axes than there are letters")
    letters = "".join(free[: max(counts)])
    if not arrow:
        named = left.replace(",", "").replace(".", "")
        right = ("..." if "..." in left else "") + "".join(sorted(letter for letter in set(named) if named.count(letter) == 1))
    expanded = [term.replace("...", letters[len(letters) - count :]) for term, count in zip(terms, counts, strict=True)]
    return expanded, right.replace("...", letters)
