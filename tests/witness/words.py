"""Texts, sequences, optionals, control flow, random numbers and optimisers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from tests.witness.case import Array, Case, Drawn, case
from xrt.comparison import EXACT
from xrt.graph import DType, Function, Node, OptionalType, SequenceType, TensorType, Value

DRAWN = Drawn("words")
F32 = TensorType(DType.FLOAT32)
LIST = SequenceType(F32)


def _texts(*values: str) -> Array:
    return np.array(values, object)


def texts() -> Iterator[Case]:
    words = _texts("ab", "", "é ç", "a b  c")
    yield case(
        "StringConcat",
        [words, _texts("x")],
        opset=20,
        formula=lambda a, b: np.array([one + b[0] for one in a], object),
        source="Python",
    )
    for delimiter, most in product((None, " ", "b"), (None, 1)):
        options = {name: value for name, value in (("delimiter", delimiter), ("maxsplit", most)) if value is not None}
        yield case(
            "StringSplit",
            [words],
            options,
            opset=20,
            outputs=2,
            formula=lambda x, d=delimiter, m=most: _split(x, d, m),
            source="Python",
        )
    for pattern in ("a.*", "[a-z]+", ""):
        yield case("RegexFullMatch", [words], {"pattern": pattern}, opset=20, label=repr(pattern))
    for action, cased, stops in product(("NONE", "LOWER", "UPPER"), (0, 1), (["AB"], ["ab", "cd"], None)):
        options = {
            "case_change_action": action,
            "is_case_sensitive": cased,
            "locale": "C",
            **({"stopwords": stops} if stops else {}),
        }
        for given in (_texts("ab", "AB", "Cd ab"), _texts("AB"), _texts("ab", "", "x")[None]):
            yield case("StringNormalizer", [given], options, opset=10, label=f"{action},{cased},{stops},{given.shape}")
    accents = _texts("é", "Ab")
    yield case(
        "StringNormalizer",
        [accents],
        {"case_change_action": "UPPER"},
        opset=10,
        label="accents",
        formula=lambda x: np.char.upper(x.astype(str)).astype(object),
    )
    for mode, skips in product(("TF", "IDF", "TFIDF"), (0, 1)):
        options = {
            "mode": mode,
            "min_gram_length": 1,
            "max_gram_length": 2,
            "max_skip_count": skips,
            "ngram_counts": [0, 3],
            "ngram_indexes": [0, 1, 2, 3, 4],
            "weights": [1.0, 2.0, 0.5, 0.25, 4.0],
        }
        for label, x, pool in (
            ("int64", np.array([[1, 2, 1, 3], [3, 3, 2, 1]]), {"pool_int64s": [1, 2, 3, 1, 2, 1, 3]}),
            ("texts", _texts("a", "b", "a", "c"), {"pool_strings": ["a", "b", "c", "a", "b", "a", "c"]}),
        ):
            yield case("TfIdfVectorizer", [x], {**options, **pool}, label=f"{mode},{skips},{label}")


def _split(x: Array, delimiter: str | None, most: int | None) -> tuple[Array, Array]:
    parts = [text.split(delimiter or None, -1 if most is None else most) for text in x]
    width = max(map(len, parts))
    return np.array([[*part, *[""] * (width - len(part))] for part in parts], object), np.array(list(map(len, parts)))


def sequences() -> Iterator[Case]:
    values = [DRAWN.floats(2, 3), DRAWN.floats(1, 3), DRAWN.floats(3, 3)]
    at = np.array
    python: dict[str, Any] = {"source": "Python", "tolerance": EXACT}
    yield case("SequenceConstruct", values, formula=lambda *x: (list(x),), label="three", **python)
    yield case("SequenceEmpty", [], {"dtype": 1}, formula=lambda: ([],), **python)
    for place in (0, -1, 2):
        yield case("SequenceAt", [values, at(place)], types=[LIST], label=f"{place}", formula=lambda x, i: x[int(i)], **python)
        yield case(
            "SequenceErase",
            [values, at(place)],
            types=[LIST],
            label=f"{place}",
            formula=lambda x, i: ([v for j, v in enumerate(x) if j != int(i) % 3],),
            **python,
        )
        yield case(
            "SequenceInsert",
            [values, DRAWN.floats(2), at(place)],
            types=[LIST],
            label=f"{place}",
            formula=lambda x, v, i: (_inserted(x, v, int(i)),),
            **python,
        )
    yield case("SequenceLength", [values], types=[LIST], label="three", formula=lambda x: np.array(3), **python)
    yield case("ConcatFromSequence", [values], {"axis": 0}, types=[LIST], label="joined", formula=lambda x: np.concatenate(x))
    yield case(
        "ConcatFromSequence",
        [[values[0]] * 3],
        {"axis": 1, "new_axis": 1},
        types=[LIST],
        label="stacked",
        formula=lambda x: np.stack(x, 1),
    )
    x = DRAWN.floats(5, 3)
    yield case("SplitToSequence", [x, at(2)], label="even", formula=lambda x, _: ([x[:2], x[2:4], x[4:]],))
    yield case("SplitToSequence", [x, at([1, 4])], label="sizes", formula=lambda x, _: ([x[:1], x[1:]],))
    yield case("SplitToSequence", [x], {"axis": 1, "keepdims": 0}, label="single", formula=lambda x: (list(x.T),))
    double = _body(["e"], ["d"], Node("Add", ("e", "e"), ("d",), name="double"))
    yield case("SequenceMap", [values], {"body": double}, types=[LIST], label="doubled", formula=lambda x: ([v + v for v in x],))
    optional = OptionalType(F32)
    yield case("Optional", [x], label="of a tensor", formula=lambda x: x, **python)
    yield case("OptionalHasElement", [x], opset=18, label="present", types=[optional], formula=lambda x: np.array(True), **python)
    yield case("OptionalGetElement", [x], opset=18, label="present", types=[optional], formula=lambda x: x, **python)


def _inserted(x: Sequence[Any], value: Any, place: int) -> list[Any]:
    found = list(x)
    found.insert(place, value)
    return found


def _body(inputs: Sequence[str], outputs: Sequence[str], *nodes: Node, types: Any = None) -> Function:
    types = types or {}
    return Function(
        tuple(Value(n, types.get(n, F32)) for n in inputs),
        tuple(Value(n, types.get(n, F32)) for n in outputs),
        nodes,
        opsets={"": 21},
        name="body",
    )


def control() -> Iterator[Case]:
    branches = {
        name: _body([], [name], Node(op, ("x1", "x1"), (name,), name=name)) for name, op in (("then", "Add"), ("else", "Mul"))
    }
    for held in (True, False):
        options = {"then_branch": branches["then"], "else_branch": branches["else"]}
        yield _capturing(
            case("If", [np.array(held)], options, label=str(held), formula=lambda c, x: x + x if c else x * x), DRAWN.floats(3)
        )
    kinds = {"i": TensorType(DType.INT64, ()), "c": TensorType(DType.BOOL, ()), "c2": TensorType(DType.BOOL, ())}
    step = _body(
        ["i", "c", "s"],
        ["c2", "t", "each"],
        Node("Identity", ("c",), ("c2",), name="keep"),
        Node("Add", ("s", "s"), ("t",), name="grow"),
        Node("Neg", ("t",), ("each",), name="each"),
        types=kinds,
    )
    for trips in (1, 3):
        given = [np.array(trips), np.array(True), np.ones(2, np.float32)]
        looped = lambda m, c, s: (
            s * np.float32(2**m),
            -np.array([s * np.float32(2**k) for k in range(1, m + 1)], np.float32).reshape(int(m), 2),
        )
        yield case("Loop", given, {"body": step}, outputs=2, label=f"{trips}", formula=looped)
    total = _body(
        ["s", "e"], ["t", "u"], Node("Add", ("s", "e"), ("t",), name="add"), Node("Identity", ("t",), ("u",), name="copy")
    )
    for reverse in (0, 1):
        options = {"body": total, "num_scan_inputs": 1, "scan_input_directions": [reverse]}
        summed = lambda s, x, r=reverse: (s + x.sum(0), s + np.cumsum(x[::-1] if r else x, axis=0))
        yield case("Scan", [DRAWN.floats(3), DRAWN.floats(4, 3)], options, outputs=2, label=f"{reverse}", formula=summed)


def _capturing(one: Case, value: Array) -> Case:
    """Return the case with a further input that only the bodies read."""
    from dataclasses import replace

    function = one.function.replace(inputs=(*one.function.inputs, Value("x1", TensorType(DType.of(value), value.shape))))
    return replace(one, function=function, inputs=(*one.inputs, value))


def optimisers() -> Iterator[Case]:
    domain = "ai.onnx.preview.training"
    rate, step = np.array(0.1, np.float32), np.array(2)
    x, g, v, h = DRAWN.floats(3), DRAWN.floats(3), DRAWN.floats(3), np.abs(DRAWN.floats(3))
    adagrad = {"epsilon": 1e-3, "decay_factor": 0.5, "norm_coefficient": 0.25}
    yield case(f"{domain}:Adagrad", [rate, step, x, g, h], adagrad, ml=1, outputs=2, label="decayed", formula=_adagrad)
    adam = {"alpha": 0.75, "beta": 0.875, "epsilon": 1e-3, "norm_coefficient": 0.25}
    yield case(f"{domain}:Adam", [rate, step, x, g, v, h], adam, ml=1, outputs=3, label="corrected", formula=_adam)
    for mode in ("standard", "nesterov"):
        momentum = {"alpha": 0.75, "beta": 0.5, "mode": mode, "norm_coefficient": 0.25}
        yield case(
            f"{domain}:Momentum",
            [rate, step, x, g, v],
            momentum,
            ml=1,
            outputs=2,
            label=mode,
            formula=lambda r, t, x, g, v, m=mode: _momentum(r, x, g, v, m),
        )


def _adagrad(rate: Array, step: Array, x: Array, g: Array, h: Array) -> tuple[Array, Array]:
    g = g + np.float32(0.25) * x
    h = h + g * g
    return (x - rate / (1 + step * 0.5) * g / (np.sqrt(h) + 1e-3)).astype(np.float32), h


def _adam(rate: Array, step: Array, x: Array, g: Array, v: Array, h: Array) -> tuple[Array, Array, Array]:
    g = g + np.float32(0.25) * x
    v, h = np.float32(0.75) * v + np.float32(0.25) * g, np.float32(0.875) * h + np.float32(0.125) * g * g
    rate = rate * np.sqrt(1 - 0.875**step) / (1 - 0.75**step)
    return (x - rate * v / (np.sqrt(h) + 1e-3)).astype(np.float32), v.astype(np.float32), h.astype(np.float32)


def _momentum(rate: Array, x: Array, g: Array, v: Array, mode: str) -> tuple[Array, Array]:
    g = g + np.float32(0.25) * x
    v = np.float32(0.75) * v + np.float32(0.5) * g
    return (x - rate * (g + np.float32(0.75) * v if mode == "nesterov" else v)).astype(np.float32), v


def families() -> Iterator[Case]:
    for family in (texts, sequences, control, optimisers):
        yield from family()
