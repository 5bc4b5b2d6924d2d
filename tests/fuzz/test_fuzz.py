"""The fuzzer: what it finds, cuts down, and reports; and the ways in which it runs a Function."""

from __future__ import annotations

import re

import numpy as np
import pytest

from xrt.engines.contract import registry
from xrt.graph.verify import verify
from xrt.testing.corpus import CORPUS
from xrt.testing.corpus.entry import read_entry, write_entry
from xrt.testing.fault_injection import FaultyEngine, RecordingEngine
from xrt.testing.fuzz import Fuzzer, make_sample
from xrt.verify import Verdict
from xrt.verify.execution import run_alone


def on_toy(function, inputs):
    return run_alone(registry.create("toy"), function, inputs)


@pytest.mark.slow
def test_generated_graphs_agree_on_ort_and_on_mixtures():
    fuzzer = Fuzzer(["ort"], bisects=False)
    fuzzer.run(range(20_000, 20_250))
    assert [str(item) for item in fuzzer.findings] == []
    assert fuzzer.counts["ort alone", Verdict.AGREES] > 150, "an engine that takes few graphs proves little"
    assert fuzzer.counts["mixture of ort,toy", Verdict.AGREES] > 240


def test_a_seed_is_one_graph_with_its_inputs():
    for seed in range(20):
        first, other = make_sample(seed), make_sample(seed)
        assert first.function.fingerprint == other.function.fingerprint
        for a, b in zip(first.inputs, other.inputs, strict=True):
            assert np.array_equal(a, b) or a.tobytes() == b.tobytes(), "a NaN equals nothing"


@pytest.mark.slow
def test_graphs_are_valid_and_of_many_kinds():
    operators, ranks, kinds = set(), set(), set()
    for seed in range(300):
        sample = make_sample(seed)
        verify(sample.function)
        operators |= {inner.op for _, inner in sample.function.walk()}
        ranks |= {array.ndim for array in sample.inputs}
        kinds |= {array.dtype.name for array in sample.inputs}
    assert len(operators) > 120
    assert ranks == set(range(7))
    assert len(kinds) == 11
    assert {"If", "Loop", "Scan", "SequenceConstruct", "NonZero", "BitShift"} <= operators


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "operator"), [("value", "Tanh"), ("shape", "Transpose"), ("dtype", "Cast"), ("value", "ReduceSum")]
)
def test_a_planted_wrong_kernel_is_found_and_bisected(how, operator):
    fuzzer = Fuzzer([FaultyEngine(how=how, takes=operator)])
    seeds = (s for s in range(1000) if any(n.op == operator for n in make_sample(s).function.nodes))
    while not fuzzer.findings:
        fuzzer.run([next(seeds)])
    (result,) = fuzzer.findings
    assert any(inner.op == operator for inner in result.sample.function.nodes)
    assert len(result.sample.function.nodes) == 1
    assert result.mode and result.message


def test_a_failing_graph_of_the_reference_is_a_finding(monkeypatch):
    fuzzer = Fuzzer(["ort"], reference=FaultyEngine())
    fuzzer.run([1])
    assert [item.mode for item in fuzzer.findings] == ["the reference"]


def test_an_entry_in_a_file_is_read_as_it_was(tmp_path):
    for entry in CORPUS:
        arrays = (*entry.inputs, *entry.expected)
        if all(isinstance(value, np.ndarray) and value.dtype != object for value in arrays):
            read = read_entry(write_entry(entry, tmp_path / "new"))
            assert (read.name, read.why, read.function.fingerprint) == (entry.name, entry.why, entry.function.fingerprint)
            for mine, theirs in zip((*read.inputs, *read.expected), arrays, strict=True):
                assert (mine.dtype, mine.shape, mine.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())


def test_a_file_that_is_no_entry_is_refused(tmp_path):
    (tmp_path / "odd.txt").write_text("function main() -> () {\n}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape("odd.txt is no entry of the corpus")):
        read_entry(tmp_path / "odd.txt")


def test_an_engine_that_takes_nothing_proves_nothing(monkeypatch, command):
    monkeypatch.setattr("xrt.cli.workshop.split_specs", lambda text: [RecordingEngine(takes="nothing")])
    code, _, err = command("fuzz", "--count", "2", "--way", "alone", "--in-process")
    assert code == 1 and "alone: it supported none of the graphs" in err


@pytest.mark.slow
def test_the_command_keeps_what_disagrees_and_exits_with_1(tmp_path, monkeypatch, command):
    monkeypatch.setattr("xrt.cli.workshop.split_specs", lambda text: [FaultyEngine(how="value", takes="Tanh")])
    seed = next(s for s in range(1000) if any(inner.op == "Tanh" for inner in make_sample(s).function.nodes))
    code, out, _ = command("fuzz", "--count", "1", "--seed", seed, "--keep", tmp_path)
    assert code == 1 and "1 disagreement\n" in out
    saved = read_entry(tmp_path / f"fuzz_{seed}.txt")
    assert saved.judge(on_toy(saved.function, saved.inputs))


def test_the_command_runs_the_ways_that_are_named(command):
    code, out, _ = command("fuzz", "--count", "6", "--way", "alone", "--way", "alternating", "--in-process")
    assert code == 0 and "6 graphs from seed 0: 0 disagreements" in out
    assert "ort alone" in out and "alternating ort,toy" in out and "mixture" not in out
