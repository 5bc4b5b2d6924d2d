"""The suite tells a good engine from a bad one: each way to misbehave fails the tests that are there for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from xrt.testing.corpus import CORPUS
from xrt.testing.suite import EngineSuite

pytestmark = [pytest.mark.slow, pytest.mark.sample(9, plain=6)]

FILE = """
import numpy as np
from tests.testing.test_open_dims import Flexible, Frozen
from xrt.engines import RunOptions
from xrt.testing.fault_injection import FaultyEngine, RecordingEngine, ObservedExecutable
from xrt.testing.suite import EngineSuite

class Lent(ObservedExecutable):
    outputs_are_fresh = True

    def run(self, inputs, options=RunOptions()):
        return [next((x for x in inputs if np.array_equal(x, result)), result) for result in super().run(inputs, options)]

class Lender(RecordingEngine):
    # says that results are the caller's own, and hands out inputs
    def compile(self, function, context):
        return Lent(self._engine.compile(function, context), self.journal)

class Withholder(RecordingEngine):
    # fills buffers only where there is one for each output
    def compile(self, function, context):
        return Withheld(self._engine.compile(function, context), self.journal)

class Withheld(ObservedExecutable):
    def run(self, inputs, options=RunOptions()):
        return super().run(inputs, options if options.out and None not in options.out else RunOptions())

class TestIt(EngineSuite):
    engine = {engine}
"""

QUICK = "corpus_alone or fallback_law or cut_law or mixture_law or reason or threads or buffers or read_only or version"


def failed_of(engine: str, tmp_path: Path, chosen: str = QUICK) -> set[str]:
    """Run the suite on an engine in a process of its own, and return the names of the tests that failed."""
    (tmp_path / "test_it.py").write_text(FILE.format(engine=engine))
    completed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", "-k", chosen, "test_it.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert completed.returncode in (0, 1), completed.stdout[-2000:]
    lines = [line.split("::")[-1] for line in completed.stdout.splitlines() if line.startswith("FAILED")]
    return {line.partition(" ")[0].partition("[")[0] for line in lines}


def test_a_good_engine_passes(tmp_path):
    assert failed_of("RecordingEngine()", tmp_path) == set()
    assert failed_of("Flexible()", tmp_path, "corpus_with_symbolic_dims") == set()


ALL_BUT_THE_NODE_TESTS = "not conformance"


def test_an_engine_that_declines_everything_passes(tmp_path):
    assert failed_of("RecordingEngine(takes='nothing')", tmp_path, ALL_BUT_THE_NODE_TESTS) == set()


@pytest.mark.full
@pytest.mark.parametrize("takes", ["Neg", "Erf", "MatMul|Conv"])
def test_an_engine_that_takes_almost_nothing_is_proved_on_that(takes, tmp_path):
    assert failed_of(f"RecordingEngine(takes={takes!r})", tmp_path, ALL_BUT_THE_NODE_TESTS) == set()
    assert failed_of(f"FaultyEngine(how='value', takes={takes!r})", tmp_path, "agrees or cut_law or second_run") == {
        "test_it_agrees_with_the_reference",
        "test_cut_law",
        "test_a_second_run_leaves_the_first_results_alone",
    }


FAULTS = [
    ("how='value'", {"test_corpus_alone", "test_fallback_law", "test_cut_law"}),
    ("how='dtype'", {"test_corpus_alone"}),
    ("how='scalar'", {"test_corpus_alone"}),
    ("how='missing'", {"test_corpus_alone"}),
    ("how='write_input'", {"test_corpus_alone", "test_read_only_and_strided_inputs_are_accepted"}),
    ("where='why_not'", {"test_the_reason_is_text_and_stays", "test_unknown_operators_are_declined_without_an_exception"}),
    ("where='version'", {"test_its_version_is_text_that_stays"}),
    ("where='memory'", {"test_memory_uses_have_a_name_and_a_reason"}),
    ("how='raise', nth=2", {"test_several_threads_may_run_at_once"}),
]
SHARING = {"test_fresh_outputs_share_no_memory", "test_results_of_every_origin_are_right_and_independent"}


@pytest.mark.parametrize(
    ("engine", "caught_by"),
    [
        *((f"FaultyEngine({told})", caught_by) for told, caught_by in FAULTS),
        ("Lender()", {"test_caller_buffers_hold_the_results", *SHARING}),
        ("Withholder()", {"test_caller_buffers_hold_the_results"}),
        ("Frozen()", {"test_corpus_with_symbolic_dims"}),
    ],
)
def test_a_bad_engine_is_caught(engine, caught_by, tmp_path):
    assert failed_of(engine, tmp_path, " or ".join(sorted(caught_by))) == caught_by


LAWS = ("cut", "order", "fallback", "mixture", "round_trip", "signature")


def test_every_law_of_engines_is_inherited():
    assert [law for law in LAWS if not callable(getattr(EngineSuite, f"test_{law}_law", None))] == []


@pytest.mark.parametrize("test", ["test_corpus_alone", "test_corpus_with_the_reference_behind"])
def test_the_whole_corpus_is_inherited(test):
    (mark,) = getattr(EngineSuite, test).pytestmark
    assert set(mark.args[1]) == {entry.name for entry in CORPUS}
