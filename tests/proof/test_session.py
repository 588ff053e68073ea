"""A proof that is killed at any moment goes on from its last state and comes to the same."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from neuronfair.audits.inputs import draw_records
from neuronfair.domain.schema.toml import parse_domain
from neuronfair.errors import NeuronFairError, RunError
from neuronfair.model.decision import Decision
from neuronfair.model.open import wrap_model
from neuronfair.progress import Interruption
from neuronfair.proof import prove
from neuronfair.proof.certificate import ProofReport
from neuronfair.proof.problem import build_problem
from neuronfair.proof.records import ProofRecords
from neuronfair.proof.session import ProofRequest, ProofRun, certify
from neuronfair.store.ledger import JOURNAL
from tests.proof.planted import DOMAIN, FLIPS, PEOPLE, make
from tests.store.runs import Killed, Killer, contents, forged, listing

DATA = draw_records(parse_domain(DOMAIN))
OPENED = wrap_model(make(), DATA.domain, DATA.rows, decision=Decision("threshold", 0.0))
PROBLEM = build_problem(OPENED, DATA.domain)
RECORDS = ProofRecords.of(PROBLEM, DATA)
SECONDS = 600.0


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Few boxes at a time, down to a few people, and a state after each step."""
    monkeypatch.setattr(prove, "BOXES_PER_STEP", {"cpu": 8})
    monkeypatch.setattr(prove, "MAX_ENUMERATED", 8)
    monkeypatch.setattr(prove, "MIN_SECONDS_BETWEEN_STATES", -1.0)
    monkeypatch.setattr(prove, "MIN_KEEPING_INTERVALS", 0)


def begin(folder: Path, where: str = "") -> ProofRun:
    model = {"model": "m.safetensors", "weights": OPENED.fingerprint, "outputs": 1}
    return ProofRun.create_or_open(folder, DATA, ProofRequest(OPENED.decision, where), **model)


def proved(folder: Path) -> ProofReport:
    run = begin(folder)
    before = run.find_report(SECONDS)
    if before is not None:
        return before
    return certify(PROBLEM, OPENED, RECORDS, SECONDS, show=lambda *_: None, run=run)[0]


def killed_at(call: int, folder: Path) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        Killer(patch, call)
        try:
            proved(folder)
        except Killed:
            return True
    return False


untimed = partial(replace, seconds=0.0, boxes=0)


@pytest.mark.slow
def test_a_proof_killed_between_any_two_file_operations_comes_to_the_same(tmp_path):
    whole = proved(tmp_path / "whole")
    assert whole.complete
    assert (whole.people.count, whole.proved_discriminatory.count) == (str(PEOPLE), str(FLIPS))
    for call in itertools.count(step=3):
        folder = tmp_path / f"killed-{call}"
        if not killed_at(call, folder):
            break
        assert untimed(proved(folder)) == untimed(whole)
        assert {name.partition("-")[0] for name in listing(folder)} == {
            *("manifest.json", "domain.toml", "journal.jsonl", "proof", "proof.json", "certificate.parquet")
        }
        assert len(list(folder.glob("proof-*.state.safetensors"))) == 1
    assert call > 20  # the test has teeth: a third of so many moments were tried


def test_it_goes_on_and_does_not_begin_again(tmp_path):
    for call in itertools.count(12, 4):
        assert killed_at(call, tmp_path / str(call))
        state = begin(tmp_path / str(call)).state(torch.device("cpu"))
        if state is not None and state.boxes > 4 and len(state.finished["low"]):
            break
    steps = []
    with pytest.MonkeyPatch.context() as patch:
        step = prove.BranchAndBound.step
        patch.setattr(prove.BranchAndBound, "step", lambda search: steps.append(search.boxes) or step(search))
        assert proved(tmp_path / str(call)).complete
    assert steps[0] == state.boxes


def test_a_changed_bit_is_found(tmp_path):
    proved(tmp_path)
    (state,) = tmp_path.glob("proof-*.state.safetensors")
    content = bytearray(state.read_bytes())
    content[-1] ^= 1
    state.write_bytes(content)
    before = contents(tmp_path)
    with pytest.raises(RunError, match="damaged: it is not as it was written"):
        begin(tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("was", "now"), [('"boxes": ', '"boxs": '), ('"phase": "proof"', '"phase": "local"')])
def test_a_forged_journal(tmp_path, was, now):
    proved(tmp_path)
    forged(tmp_path, JOURNAL, was, now)
    with pytest.raises(RunError, match="line 2 is damaged"):
        begin(tmp_path)


def test_another_question(tmp_path):
    begin(tmp_path)
    with pytest.raises(RunError, match="begun with where = , not age > 30"):
        begin(tmp_path, "age > 30")


@pytest.mark.parametrize(
    ("kind", "name", "change", "why"),
    [
        ("finished", "fair", lambda column: column * 0 + 2.0, "prove more records than they hold"),
        ("finished", "fair", lambda column: column * float("nan"), "prove more records than they hold"),
        ("finished", "fair_count", lambda column: column * 0 + 10**9, "prove more records than they hold"),
        ("finished", "high", lambda column: column + 1000, "do not lie within the region"),
        ("finished", "low", lambda column: column - 5, "do not lie within the region"),
        ("finished", "pattern", lambda column: column + 99, "do not lie within the region"),
        (
            "finished",
            None,
            lambda columns: {name: column[:-1] for name, column in columns.items()},
            "of the whole region",
        ),
        ("finished", None, lambda columns: {n: torch.cat([c, c]) for n, c in columns.items()}, "of the whole region"),
        ("undecided", None, lambda columns: {"low": columns["low"]}, "no state of such a proof"),
        ("finished", "fair", lambda column: column[:-1], "no state of such a proof"),
    ],
)
def test_a_state_made_by_hand_is_refused_in_one_line(tmp_path, kind, name, change, why):
    proved(tmp_path)
    run = begin(tmp_path)
    state = run.state(torch.device("cpu"))
    columns = dict(getattr(state, kind))
    columns = change(columns) if name is None else {**columns, name: change(columns[name])}
    run.keep(replace(state, **{kind: columns}))
    (tmp_path / "certificate.parquet").unlink()
    with pytest.raises(RunError, match=why) as refused:
        certify(PROBLEM, OPENED, RECORDS, SECONDS, show=lambda *_: None, run=begin(tmp_path))
    assert "\n" not in str(refused.value)


def test_a_state_that_would_take_too_much_memory_is_refused(tmp_path, monkeypatch):
    proved(tmp_path)
    run = begin(tmp_path)
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "100")
    with pytest.raises(NeuronFairError, match="GB of memory"):
        run.state(torch.device("cpu"))


def test_states_are_kept_more_seldom_the_longer_that_takes(monkeypatch):
    """However long it takes to keep a state, no more than about a twentieth of the time is spent on it."""
    now, kept = [0.0], []
    monkeypatch.setattr(prove.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(prove, "monotonic", lambda: now[0])
    monkeypatch.setattr(prove, "MIN_SECONDS_BETWEEN_STATES", 10.0)
    monkeypatch.setattr(prove, "MIN_KEEPING_INTERVALS", 20)

    class Search:
        seconds, undecided_count = 0.0, 1

        def step(self):
            now[0] += 1.0

        def adapt_batch(self, *_):
            pass

        def state(self):
            return None

    def keep(_):
        kept.append(now[0])
        now[0] += 5.0

    prove.advance(Search(), 1000.0, interruption=Interruption(), keep=keep)
    assert kept[0] <= 12
    assert 5 * len(kept) <= 1000 / 20 + 10
