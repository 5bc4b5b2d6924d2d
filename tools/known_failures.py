"""Tests of ``onnx`` that the engines of this repository fail, each with the reason and a link.

If a library computes an operator wrongly under a condition that can be described, the engine declines the operator instead, by a
row of its table of known issues.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module

from xrt.engines.toolkit.known_issues import KnownIssue
from xrt.testing import KnownFailure

__all__ = ["MIXTURES", "list_known_failures", "list_known_issues", "load_known_failures"]

MIXTURES = "mixtures"
"""Key of the failures that only occur when several engines run together."""

_ENTRIES = {
    "ort on cuda": (
        *(
            KnownFailure(
                cases,
                "not upstream",
                "Softmax of a row of negative infinities is NaN in the CUDA provider, where ONNX has zeros for a masked row",
                "https://onnx.ai/onnx/operators/onnx__Attention.html",
                everywhere=False,
            )
            for cases in (
                "test_attention_*fullymasked*_expanded",
                "test_attention_*_nan_robustness_expanded",
                "test_attention_local_window_gqa_rank4_mask_expanded",
                "test_attention_4d_causal_nonpad_negative_offset_structural_empty_expanded",
            )
        ),
        KnownFailure(
            "test_attention_4d_*fp16",
            "never",
            "the CUDA provider rounds to float16 between the two products: one unit in the last place",
            "https://onnx.ai/onnx/operators/onnx__Attention.html",
            everywhere=False,
        ),
    ),
    "tvm on cuda": (
        KnownFailure(
            "test_mod_float_edge_cases_fmod_0_*",
            "not upstream",
            "the remainder of a division by infinity is NaN",
            "https://onnx.ai/onnx/operators/onnx__Mod.html",
            everywhere=False,
        ),
    ),
    "openvino": (
        *(
            KnownFailure(
                cases,
                "not upstream",
                "OpenVINO returns NaN for a row all of whose keys are masked, where ONNX has zeros",
                "https://docs.openvino.ai/2026/documentation/openvino-ir-format/operation-sets/operation-specs/activation/"
                "softmax-8.html",
                everywhere=False,
            )
            for cases in (
                "test_attention_*fullymasked*_expanded",
                "test_attention_*_nan_robustness_expanded",
                "test_attention_24_qk_matmul_output_mode3_softmax_precision_expanded",
                "test_attention_4d_causal_nonpad_negative_offset_structural_empty_expanded",
                "test_attention_4d_causal_padded_kv_bf16_expanded",
            )
        ),
        KnownFailure(
            "test_dynamicquantizelinear_expanded",
            "never",
            "a quotient half-way between two integers rounds to either",
            "https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html",
            everywhere=False,
        ),
        KnownFailure(
            "test_nonmaxsuppression_iou_threshold_boundary",
            "not upstream",
            "OpenVINO suppresses a box that overlaps by just the threshold, too; with symbolic dims it is declined",
            "https://docs.openvino.ai/2026/documentation/openvino-ir-format/operation-sets/operation-specs/sort/"
            "non-max-suppression-9.html",
            everywhere=False,
        ),
    ),
    "ort": (
        KnownFailure(
            "test_attention_4d_diff_heads_mask4d_padded_kv",
            "not upstream",
            "with symbolic dims, ONNX Runtime refuses in the run a mask that is shorter than the keys; otherwise it is declined",
            "https://github.com/microsoft/onnxruntime/blob/main/onnxruntime/core/providers/cpu/llm/attention.cc",
            everywhere=False,
        ),
        KnownFailure(
            "test_attention_4d_causal_fp16",
            "never",
            "every step rounds its result to float16, and one element of the last differs by two roundings",
            "https://onnx.ai/onnx/operators/onnx__Attention.html",
            everywhere=False,
        ),
    ),
    "iree": (
        KnownFailure(
            "test_attention_4d_causal_fp16*",
            "never",
            "every step rounds its result to float16, and two elements of the last differ by one rounding",
            "https://onnx.ai/onnx/operators/onnx__Attention.html",
            everywhere=False,
        ),
    ),
    "tvm": (
        KnownFailure(
            "test_attention_4d_causal_fp16_expanded",
            "not upstream",
            "each operator of the expansion rounds its result to float16; the case was computed in float32 and rounded once",
            "https://github.com/apache/tvm/issues/8296",
            everywhere=False,
        ),
    ),
    MIXTURES: (
        KnownFailure(
            "test_attention_4d_causal_fp16_expanded",
            "never",
            "what passes from engine to engine is float16 at every node; the case was computed in float32 and rounded once",
            "https://github.com/onnx/onnx/blob/main/onnx/backend/test/case/node/attention.py",
            everywhere=False,
        ),
        KnownFailure(
            "test_mish_expanded",
            "never",
            "the logarithm of one and a little more keeps few bits of the little: the last is two hundredths of the result",
            "https://onnx.ai/onnx/operators/onnx__Mish.html",
            everywhere=False,
        ),
        KnownFailure(
            "test_dynamicquantizelinear_expanded",
            "never",
            "a quotient half-way between two integers rounds to either, by the last bit that the engine before has left "
            "of the scale",
            "https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html",
            everywhere=False,
        ),
    ),
}


def load_known_failures(engine: str) -> tuple[KnownFailure, ...]:
    """List the known failures of an engine, by its name or spec, or those of `MIXTURES`."""
    return _ENTRIES.get(engine.partition("{")[0], ())


def list_known_failures(engines: Iterable[str]) -> tuple[KnownFailure, ...]:
    """List the known failures of a run on these engines together."""
    names = list(engines)
    keys = [*names, MIXTURES] if len(names) > 1 else names
    return tuple(failure for key in keys for failure in load_known_failures(key))


_ISSUES = {
    "ort": ("xrt.engines.ort.tables.ISSUES",),
    "tvm": ("xrt.engines.tvm.tables.ISSUES",),
    "openvino": ("xrt.engines.openvino.tables.ISSUES", "xrt.engines.openvino.tables.DYNAMIC_SHAPE_ISSUES"),
    "iree": ("xrt.engines.iree.tables.ISSUES",),
    "torch{mode=inductor}": ("xrt.engines.torch.tables.INDUCTOR_ISSUES",),
}
"""The tables of known issues, by engine."""


def list_known_issues() -> Mapping[str, tuple[KnownIssue, ...]]:
    """Map each engine to the issues of its library, in the order of the tables."""
    return {engine: tuple(row for name in names for row in _load(name)) for engine, names in _ISSUES.items()}


def _load(name: str) -> tuple[KnownIssue, ...]:
    module, _, table = name.rpartition(".")
    rows: tuple[KnownIssue, ...] = getattr(import_module(module), table)
    return rows
