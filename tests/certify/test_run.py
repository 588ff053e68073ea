"""A proof that is killed at any moment goes on from its last state and comes to the same."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from neuronfair.certify import prove
from neuronfair.certify.answer import Effort, answer, finished
from neuronfair.certify.report import ProofReport
from neuronfair.certify.run import Asked, ProofRun
from neuronfair.certify.subject import subject_of
from neuronfair.domain.toml import parse_domain
from neuronfair.errors import RunError
from neuronfair.model.decision import Decision
from neuronfair.model.open import open_model
from neuronfair.store.journal import JOURNAL
from neuronfair.verdict.given import drawn_from
from tests.certify.planted import DOMAIN, FLIPS, PEOPLE, make
from tests.store.runs import Killed, Killer, contents, forged, listing

DATA = drawn_from(parse_domain(DOMAIN))
OPENED = open_model(make(), DATA.domain, DATA.rows, decision=Decision("threshold", 0.0))
SUBJECT = subject_of(OPENED, DATA.domain)
EFFORT = Effort(seconds=600.0, rows=0)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Few boxes at a time, down to a few people, and a state after each step."""
    monkeypatch.setattr(prove, "BATCH", {"cpu": 8})
    monkeypatch.setattr(prove, "SMALL", 8)
    monkeypatch.setattr(prove, "KEEP", -1.0)


def begin(folder: Path, where: str = "") -> ProofRun:
    model = {"model": "m.safetensors", "weights": OPENED.fingerprint, "outputs": 1}
    return ProofRun.create_or_open(folder, DATA, Asked(OPENED.decision, where), **model)


def proved(folder: Path) -> ProofReport:
    run = begin(folder)
    before = finished(run, EFFORT)
    if before is not None:
        return before
    return answer(SUBJECT, OPENED, DATA, EFFORT, show=lambda *_: None, run=run)


def killed_at(call: int, folder: Path) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        Killer(patch, call)
        try:
            proved(folder)
        except Killed:
            return True
    return False


untimed = partial(replace, seconds=0.0, boxes=0)


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
        if state is not None and state.boxes > 4 and len(state.done["low"]):
            break
    steps = []
    with pytest.MonkeyPatch.context() as patch:
        step = prove.Search.step
        patch.setattr(prove.Search, "step", lambda search: steps.append(search.boxes) or step(search))
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
