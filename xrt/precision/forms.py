"""Which quantized forms of a model can pay, and on which engines: what is not made needs no judging."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xrt.graph import Function, Node, TensorType
from xrt.passes.quantize.dynamic import why_not_matrix
from xrt.placement.byte_sums import needs_reduced_range
from xrt.placement.quantized_form import OPTIONS, QuantizedForm

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.formats.precision_record import FormKind

__all__ = ["ProductShape", "describe_form", "list_product_forms", "measure_products"]

LEAST_SHARE = 0.1
"""Share of a model's weights that matrices of products must have for forms of products alone."""
FEW_ROWS = 16
"""A product of more rows is not bound by reading its weights: to store them in fewer bits alone saves it no time."""
_WORDS: Mapping[FormKind, str] = {
    "static": "int8",
    "dynamic": "dynamic int8",
    "packed8": "int8 weights",
    "stored8": "int8 weights",
    "packed4": "int4 weights",
    "stored4": "int4 weights",
}


@dataclass(frozen=True, slots=True)
class ProductShape:
    """The products by constant matrices of a model."""

    share: float
    """Of the bytes of all weights of products and convolutions, those of these matrices."""
    rows: int
    """Of the operand with most rows; a large number where they are unknown."""

    @property
    def can_pay(self) -> bool:
        """Whether forms of products alone may be faster."""
        return self.share >= LEAST_SHARE


def measure_products(prepared: Function, names: Sequence[str]) -> ProductShape:
    """Return what matrices the nodes of those names have."""
    own, rows = 0, 0
    everything = sum(
        {
            node.inputs[1]: prepared.constants[node.inputs[1]].nbytes
            for node in prepared.nodes
            if node.op in ("Conv", "ConvTranspose", "Gemm", "MatMul") and node.inputs[1] in prepared.constants
        }.values()
    )
    seen: set[str] = set()
    for node in (prepared.node(name) for name in names):
        if why_not_matrix(node, prepared, OPTIONS) is None:
            own += 0 if node.inputs[1] in seen else prepared.constants[node.inputs[1]].nbytes
            seen.add(node.inputs[1])
            rows = max(rows, _count_rows(node, prepared))
    return ProductShape(own / everything if everything else 0.0, rows)


def _count_rows(node: Node, function: Function) -> int:
    type_ = function.get_type(node.inputs[0])
    count = 1
    for extent in (type_.shape or (None, None))[:-1] if isinstance(type_, TensorType) else (None,):
        if not isinstance(extent, int):
            return 1 << 30
        count *= extent
    return count


def describe_form(form: QuantizedForm, *, is_halved: bool = False) -> str:
    """Return what a form is computed in.

    >>> describe_form(QuantizedForm(kind="packed4"), is_halved=True)
    'int4 weights and bf16'
    """
    words = ("balanced " if form.balance else "") + _WORDS[form.kind]
    return f"{words} and bf16" if is_halved else words


def list_product_forms(
    prepared: Function,
    shape: ProductShape,
    fixed: frozenset[int],
    allowed: Sequence[str],
    engine: GraphCompiler,
    *,
    has_kernels: bool,
) -> Iterator[tuple[QuantizedForm, Function]]:
    """Yield the forms of products alone that may be faster on an engine that takes them whole, each with the model in it.

    Matrices are packed for an engine that has a product with packed ones. Another engine gets them as they are stored, where
    reading them is what takes time. ``has_kernels`` says whether the engine computes with integers that are no pairs of
    QuantizeLinear and DequantizeLinear: MatMulInteger took 16 times as long on one that does not.
    """
    few = shape.rows <= FEW_ROWS
    kinds: list[FormKind] = []
    if "int8" in allowed:
        kinds += ["dynamic"] if has_kernels else []
        kinds += ["packed8", "stored8"] if few else ["packed8"]
    if "int4" in allowed and few:
        kinds += ["packed4", "stored4"]
    done: set[str] = set()
    for kind in kinds if shape.can_pay else ():
        form = QuantizedForm(None, fixed, kind, reduce_range=kind == "dynamic" and needs_reduced_range([engine]))
        words = describe_form(form)
        if words in done:  # the packed form of the same weights
            continue
        made = form.apply(prepared)
        if all(engine.why_not(node, made) is None for node in made.nodes if prepared.producer(node.outputs[0]) != node):
            done.add(words)
            yield form, made
