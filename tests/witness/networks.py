"""Products, recurrences, attention, normalisations, softmaxes and losses."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import scipy.special

from tests.witness.case import Array, Case, Drawn, case, forms

DRAWN = Drawn("networks")


def products() -> Iterator[Case]:
    for left, right in (
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((4,), (2, 4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((3, 0), (0, 2)),
    ):
        for dtype in (np.float32, np.float64, np.int64):
            x, y = ((DRAWN.floats(*shape, scale=4)).astype(dtype) for shape in (left, right))
            yield case("MatMul", [x, y], formula=np.matmul)
    for options in forms(transA=(0, 1), transB=(0, 1), alpha=(1.0, 0.5), beta=(1.0, 0.25)):
        a, b = DRAWN.floats(*((4, 3) if options["transA"] else (3, 4))), DRAWN.floats(*((5, 4) if options["transB"] else (4, 5)))
        for c in (DRAWN.floats(5), DRAWN.floats(3, 1), None):
            formula = lambda a, b, c=0, o=options: (
                o["alpha"] * (a.T if o["transA"] else a) @ (b.T if o["transB"] else b) + o["beta"] * c
            )
            yield case("Gemm", [a, b, c], options, formula=formula)
    for equation, shapes in (
        ("ij,jk->ik", ((2, 3), (3, 4))),
        ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))),
        ("ii->i", ((3, 3),)),
        ("ij->ji", ((2, 3),)),
        ("...ij,...jk->...ik", ((2, 3, 4), (4, 5))),
        ("i,j->ij", ((2,), (3,))),
        ("ij->", ((2, 3),)),
        ("bhid,bhjd->bhij", ((2, 2, 3, 4), (2, 2, 5, 4))),
        ("ij,jk", ((2, 3), (3, 4))),
    ):
        given = [DRAWN.floats(*shape) for shape in shapes]
        yield case("Einsum", given, {"equation": equation}, formula=lambda *x, e=equation: np.asarray(np.einsum(e, *x)))
    for shape in ((3, 3), (2, 4, 4), (1, 1), (2, 3, 2, 2)):
        for dtype in (np.float32, np.float64):
            yield case("Det", [DRAWN.floats(*shape, dtype=dtype)], formula=lambda x: np.asarray(np.linalg.det(x)))


def recurrences() -> Iterator[Case]:
    for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        for direction, extra in product(("forward", "reverse", "bidirectional"), range(5)):
            yield _recurrent(op, gates, direction, extra)
        yield _recurrent(op, gates, "forward", 0, activations=["Relu", "Sigmoid", "Tanh"][: {"RNN": 1, "GRU": 2, "LSTM": 3}[op]])
        yield _recurrent(op, gates, "forward", 1, clip=0.3)


def _recurrent(op: str, gates: int, direction: str, extra: int, **options: object) -> Case:
    """Extra inputs come one after the other: biases, lengths, a first state, LSTM's first cell, its peepholes."""
    hidden, size, steps, batch, directions = 3, 2, 4, 2, 2 if direction == "bidirectional" else 1
    given: list[Array | None] = [
        DRAWN.floats(steps, batch, size),
        DRAWN.floats(directions, gates * hidden, size),
        DRAWN.floats(directions, gates * hidden, hidden),
        DRAWN.floats(directions, 2 * gates * hidden) if extra else None,
        np.array([4, 2], np.int32) if extra > 1 else None,
        DRAWN.floats(directions, batch, hidden) if extra > 2 else None,
    ]
    if op == "LSTM":
        given += [
            DRAWN.floats(directions, batch, hidden) if extra > 2 else None,
            DRAWN.floats(directions, 3 * hidden) if extra > 3 else None,
        ]
    attributes = {"hidden_size": hidden, "direction": direction, **options}
    if op == "GRU" and extra % 2:
        attributes["linear_before_reset"] = 1
    if op == "LSTM" and extra == 2:
        attributes["input_forget"] = 1
    while given[-1] is None:
        given.pop()
    return case(
        op, given, attributes, outputs=3 if op == "LSTM" else 2, label=f"{direction},{extra},{','.join(map(str, options))}"
    )


def attention() -> Iterator[Case]:
    for causal, masked, heads in product((0, 1), (False, True), (2, 4)):
        q, k, v = DRAWN.floats(2, heads, 3, 8), DRAWN.floats(2, 2, 5, 8), DRAWN.floats(2, 2, 5, 6)
        mask = DRAWN.floats(3, 5) if masked else None
        given = [q, k, v] if mask is None else [q, k, v, mask]
        formula = lambda q, k, v, m=None, c=causal: _attention(q, k, v, m, c)
        yield case(
            "Attention",
            given,
            {"is_causal": causal},
            opset=23,
            label=f"{causal},{masked},{heads}",
            formula=formula,
            source="SciPy",
        )
    flat = [DRAWN.floats(2, 3, 8), DRAWN.floats(2, 5, 8), DRAWN.floats(2, 5, 8)]
    yield case(
        "Attention",
        flat,
        {"q_num_heads": 2, "kv_num_heads": 2, "scale": 0.25},
        opset=23,
        formula=lambda q, k, v: _merged(_attention(*(_headed(x, 2) for x in (q, k, v)), None, 0, 0.25)),
        source="SciPy",
    )
    boolean = DRAWN.integers(0, 2, 3, 5, dtype=bool) | np.eye(3, 5, dtype=bool)
    yield case(
        "Attention",
        [DRAWN.floats(1, 2, 3, 4), DRAWN.floats(1, 2, 5, 4), DRAWN.floats(1, 2, 5, 4), boolean],
        opset=23,
        formula=lambda q, k, v, m: _attention(q, k, v, np.where(m, 0, -np.inf), 0),
        source="SciPy",
    )
    yield case(
        "Attention",
        [DRAWN.floats(1, 2, 3, 4), DRAWN.floats(1, 2, 5, 4), DRAWN.floats(1, 2, 5, 4)],
        {"softcap": 2.0},
        opset=23,
        formula=lambda q, k, v: _attention(q, k, v, None, 0, cap=2.0),
        source="SciPy",
    )
    grouped = [DRAWN.floats(2, 4, 3, 8), DRAWN.floats(2, 2, 5, 8), DRAWN.floats(2, 2, 5, 6)]
    for scale in (None, 0.5):
        options = {} if scale is None else {"scale": scale}
        flexible = lambda q, k, v, s=scale: _attention(q, k, v, None, 0, s)
        yield case("ai.onnx.preview:FlexAttention", grouped, options, ml=1, formula=flexible, source="SciPy")
    for biased, past in product((False, True), repeat=2):
        given = [
            DRAWN.floats(2, 3, 5),
            DRAWN.floats(3, 1, 4),
            DRAWN.floats(3) if biased else None,
            DRAWN.floats(2, 3, 3) if past else None,
        ]
        causal_conv = lambda x, w, *more, b=biased, p=past: _causal(x, w, more[0] if b else None, more[-1] if p else None)
        yield case("CausalConvWithState", given, opset=27, outputs=2, label=f"{biased},{past}", formula=causal_conv)
    x = DRAWN.floats(2, 3, 4, 8)
    for interleaved in (0, 1):
        angles = DRAWN.floats(2, 4, 4)
        given = [x, np.cos(angles), np.sin(angles)]
        yield case(
            "RotaryEmbedding",
            given,
            {"interleaved": interleaved},
            opset=23,
            formula=lambda x, c, s, i=interleaved: _rotated(x, c, s, i),
        )


def _causal(x: Array, w: Array, bias: Array | None, past: Array | None) -> tuple[Array, Array]:
    """Correlate each channel with its kernel, over what came before."""
    before = np.zeros((*x.shape[:2], w.shape[2] - 1), x.dtype) if past is None else past
    whole = np.concatenate([before, x], axis=2)
    found = np.array([[np.correlate(whole[n, c], w[c, 0], "valid") for c in range(x.shape[1])] for n in range(len(x))], x.dtype)
    return found if bias is None else found + bias[:, None], whole[:, :, -before.shape[2] :]


def _headed(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _merged(x: Array) -> Array:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def _attention(
    q: Array, k: Array, v: Array, mask: Array | None, causal: int, scale: float | None = None, cap: float = 0.0
) -> Array:
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * (scale or 1 / np.sqrt(q.shape[-1]))
    scores = cap * np.tanh(scores / cap) if cap else scores
    scores = scores if mask is None else scores + mask
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    return (scipy.special.softmax(scores.astype(np.float64), axis=-1) @ v).astype(q.dtype)


def _rotated(x: Array, cos: Array, sin: Array, interleaved: int) -> Array:
    """Turn pairs of numbers, which are neighbours or stand in the two halves, as complex numbers."""
    pairs = x.reshape(*x.shape[:-1], -1, 2) if interleaved else np.stack(np.split(x, 2, axis=-1), axis=-1)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * (cos + 1j * sin)[:, None]
    parts = np.stack([turned.real, turned.imag], axis=-1)
    return (
        parts.reshape(x.shape).astype(x.dtype)
        if interleaved
        else np.concatenate([parts[..., 0], parts[..., 1]], axis=-1).astype(x.dtype)
    )


def normalisations() -> Iterator[Case]:
    x = DRAWN.floats(2, 4, 3, 5)
    statistics = [np.abs(DRAWN.floats(4)) + 0.5 for _ in range(4)]
    yield case("BatchNormalization", [x, *statistics], {"epsilon": 0.01})
    yield case("InstanceNormalization", [x, *statistics[:2]], {"epsilon": 0.01})
    for axis in (-1, 1, 2):
        scale, bias = DRAWN.floats(*x.shape[axis:]), DRAWN.floats(*x.shape[axis:])
        yield case("LayerNormalization", [x, scale, bias], {"axis": axis, "epsilon": 1e-3}, outputs=3)
        yield case("RMSNormalization", [x, scale], {"axis": axis}, opset=23, formula=lambda x, s, a=axis: _rms(x, s, a))
    for groups in (1, 2, 4):
        scale, bias = DRAWN.floats(4), DRAWN.floats(4)
        yield case(
            "GroupNormalization",
            [x, scale, bias],
            {"num_groups": groups, "epsilon": 1e-3},
            opset=21,
            formula=lambda x, s, b, g=groups: _grouped(x, s, b, g),
        )
    for size in (1, 2, 3, 5):
        yield (
            case(
                "LRN",
                [DRAWN.floats(2, 6, 3, 3)],
                {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.5},
                formula=lambda x, n=size: _lrn(x, n),
            )
            if size % 2 == 0
            else case("LRN", [DRAWN.floats(2, 6, 3, 3)], {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.5})
        )
    for axes in ([0, 2, 3], [1]):
        yield case("MeanVarianceNormalization", [x], {"axes": axes})
    for axis, p in product((0, 1, -1), (1, 2)):
        yield case(
            "LpNormalization",
            [x],
            {"axis": axis, "p": p},
            formula=lambda x, a=axis, p=p: (
                x / np.linalg.norm(np.moveaxis(x, a, 0), p if False else None, axis=0, keepdims=False)[()].reshape(1)
                if False
                else x / (np.sum(np.abs(x) ** p, axis=a, keepdims=True) ** (1 / p))
            ),
        )
    for op, formula in (("Softmax", scipy.special.softmax), ("LogSoftmax", scipy.special.log_softmax)):
        for axis, dtype in product((0, 1, -1), (np.float32, np.float64)):
            yield case(
                op,
                [DRAWN.floats(3, 4, 5, dtype=dtype, scale=5)],
                {"axis": axis},
                formula=lambda x, f=formula, a=axis: f(x, axis=a),
                source="SciPy",
            )
        yield case(op, [DRAWN.floats(3, 4, 5)], {"axis": 1}, opset=11)
    yield case("Dropout", [x, np.array(0.5, np.float32), np.array(False)], outputs=2, constants=(1, 2))


def _rms(x: Array, scale: Array, axis: int) -> Array:
    axes = tuple(range(axis % x.ndim, x.ndim))
    return x / np.sqrt(np.mean(np.square(x), axis=axes, keepdims=True) + 1e-5) * scale


def _grouped(x: Array, scale: Array, bias: Array, groups: int) -> Array:
    parts = x.reshape(len(x), groups, -1).astype(np.float64)
    parts = (parts - parts.mean(axis=2, keepdims=True)) / np.sqrt(parts.var(axis=2, keepdims=True) + 1e-3)
    return (parts.reshape(x.shape) * scale[:, None, None] + bias[:, None, None]).astype(x.dtype)


def _lrn(x: Array, size: int) -> Array:
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    squares = [np.square(x[:, max(0, c - before) : c + after + 1]).sum(axis=1) for c in range(x.shape[1])]
    return x / (1.5 + 0.5 / size * np.stack(squares, axis=1)) ** 0.6


def losses() -> Iterator[Case]:
    labels, weights = DRAWN.integers(0, 4, 3, 5), np.abs(DRAWN.floats(4))
    for reduction, weighted, ignored in product(("none", "mean", "sum"), (False, True), (None, 1)):
        options = {"reduction": reduction} if ignored is None else {"reduction": reduction, "ignore_index": ignored}
        for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
            scores = DRAWN.floats(3, 4, 5)
            given = [scores, labels, weights] if weighted else [scores, labels]
            formula = lambda x, y, w=None, o=op, r=reduction, i=ignored: _loss(x, y, w, o, r, i)
            yield case(op, given, options, label=f"{reduction},{weighted},{ignored}", formula=formula, source="SciPy")


def _loss(x: Array, labels: Array, weights: Array | None, op: str, reduction: str, ignored: int | None) -> Array:
    logs = scipy.special.log_softmax(x.astype(np.float64), axis=1) if op.startswith("Soft") else x
    chosen = np.take_along_axis(logs, labels[:, None], axis=1)[:, 0]
    share = (np.ones(4) if weights is None else weights.astype(np.float64))[labels] * (labels != ignored)
    found = -chosen * share
    total = found if reduction == "none" else found.sum() / (share.sum() if reduction == "mean" else 1)
    return np.asarray(total, x.dtype)


def families() -> Iterator[Case]:
    for family in (products, recurrences, attention, normalisations, losses):
        yield from family()
