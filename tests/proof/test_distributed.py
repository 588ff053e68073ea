"""A proof by many workers comes to what one process comes to, whoever is killed; and nothing gets lost on the way."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from neuronfair.audits.inputs import draw_records
from neuronfair.limits import SIZE_VARIABLE, TooLargeError
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Decision
from neuronfair.model.open import wrap_model
from neuronfair.proof import distributed
from neuronfair.proof import prove as proving
from neuronfair.proof.bounds.space import CutTree
from neuronfair.proof.checker.check import check
from neuronfair.proof.distributed import PieceFolder, _compute_checksum, prove_together, recover_state
from neuronfair.proof.problem import build_problem
from neuronfair.proof.prove import ProofProgress, prove
from neuronfair.proof.records import ProofRecords
from neuronfair.proof.session import CERTIFICATE, SHARDS, ProofRequest, ProofRun, certify
from neuronfair.proof.state import Guides, ProofState
from neuronfair.scale.pool import Serial
from neuronfair.store.files import load_state, save_state
from tests.proof.enumerable import RULES, domain_of, figures, network_of, tiles, truth

DOMAIN = domain_of(*RULES)
DECISION = Decision("tolerance", 0.6)
NETWORK = network_of(DOMAIN, 1)
PROBLEM = build_problem(NETWORK, DOMAIN, decision=DECISION)
TRUTH = truth(NETWORK, DOMAIN, DECISION)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Few boxes at a time, one piece for each worker, and a clock that goes on when somebody looks at it."""
    now = SimpleNamespace(seconds=1e9)

    def look() -> float:
        now.seconds += 0.25
        return now.seconds

    monkeypatch.setattr(proving, "BOXES_PER_STEP", {"cpu": 16})
    monkeypatch.setattr(proving, "MAX_ENUMERATED", 2)
    monkeypatch.setattr(distributed, "PIECES_PER_WORKER", 1)
    monkeypatch.setattr(distributed, "BOXES_PER_PIECE", 4)
    monkeypatch.setattr(distributed, "MIN_ROUND_SECONDS", 1.0)
    monkeypatch.setattr(distributed, "MAX_ROUND_SECONDS", 1.0)
    for module in (proving, distributed):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=look))
    return now


@dataclass
class Watched:
    """Does the pieces one after the other, those that are named twice after a kill; and remembers how many boxes."""

    size: int
    work: Callable[..., ProofState] = distributed.continue_piece
    dealt: list[list[Any]] = field(default_factory=list)

    def map(self, work: Any, shared: Any, items: Sequence[Any], **options: Any) -> Iterator[Any]:
        if work is not distributed.continue_piece:  # they are only asked to come
            return iter(())
        self.dealt.append(list(items))
        return Serial().map(self.work, shared, items, **options)


class Killed(BaseException):
    """A worker is gone."""


def killed_once(problem, piece, note, *, after: int = 2, gone: bool = False) -> ProofState:
    """Kill a piece after so many steps, and do it again, with what it has kept or as if that were gone with it."""
    steps = 0

    def dying(*line: int) -> None:
        nonlocal steps
        steps += 1
        if steps == after:
            raise Killed

    try:
        distributed.continue_piece(problem, piece, dying)
    except Killed:
        if gone:
            for path in piece.folder.folder.iterdir():
                path.unlink()
    return distributed.continue_piece(problem, piece, note)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_any_number_of_workers_come_to_the_truth(size):
    shown, pool = list[ProofProgress](), Watched(size)
    proof = prove_together(PROBLEM, pool=pool, seconds=600, progress=shown.append)
    assert figures(proof) == TRUTH == figures(prove(PROBLEM, seconds=600))
    assert tiles(PROBLEM, proof)
    assert len(pool.dealt) > 1  # boxes are dealt anew
    assert all(len(pieces) == size for pieces in pool.dealt)
    assert (shown[-1].fair, shown[-1].discriminatory) == pytest.approx((TRUTH[1] / TRUTH[0], TRUTH[2] / TRUTH[0]))
    assert all(a.boxes <= b.boxes and a.seconds < b.seconds for a, b in pairwise(shown))
    for now in shown:  # at no moment more than is true
        assert now.fair <= TRUTH[1] / TRUTH[0] + 1e-9
        assert now.discriminatory <= TRUTH[2] / TRUTH[0] + 1e-9
    assert shown[-1].boxes == proof.boxes


def test_boxes_are_dealt_round_robin_the_most_open_first():
    pool = Watched(3)
    prove_together(PROBLEM, pool=pool, seconds=600)
    pieces = [piece.state.undecided for piece in pool.dealt[0]]
    sizes = [len(piece["low"]) for piece in pieces]
    assert max(sizes) - min(sizes) <= 1
    extents = [(piece["high"] - piece["low"] + 1).prod(1) for piece in pieces]
    open_people = [extent * (1 - p["fair"] - p["flips"]) for extent, p in zip(extents, pieces, strict=True)]
    row = [float(part[i]) for i in range(min(sizes)) for part in open_people]
    assert row == sorted(row, reverse=True)


@pytest.mark.parametrize("gone", [False, True])
def test_a_piece_that_is_killed_and_done_again_changes_nothing(monkeypatch, gone):
    monkeypatch.setattr(proving, "MIN_SECONDS_BETWEEN_STATES", -1.0)
    monkeypatch.setattr(proving, "MIN_KEEPING_INTERVALS", 0)
    proof = prove_together(PROBLEM, pool=Watched(2, partial(killed_once, gone=gone)), seconds=600)
    assert figures(proof) == TRUTH
    assert tiles(PROBLEM, proof)


def test_a_piece_goes_on_from_what_it_has_kept(monkeypatch):
    monkeypatch.setattr(proving, "MIN_SECONDS_BETWEEN_STATES", -1.0)
    monkeypatch.setattr(proving, "MIN_KEEPING_INTERVALS", 0)
    said, calm = list[int](), list[int]()

    def work(problem, piece, note):
        state = killed_once(problem, piece, lambda *line: said.append(line[0]), after=3)
        assert distributed.continue_piece(problem, piece, None) is not state  # done: it says nothing and is the same
        piece.folder.folder.joinpath(next(piece.folder.folder.iterdir())).unlink()
        distributed.continue_piece(problem, piece, lambda *line: calm.append(line[0]))
        raise Killed

    with pytest.raises(Killed):
        prove_together(PROBLEM, pool=Watched(1, work), seconds=600)
    assert said[0] == calm[2]  # the third step was done, but not kept any more
    assert said == calm[2:][: len(said)]


def test_without_a_folder_that_all_share_nothing_is_kept():
    def elsewhere(problem, piece, note):
        piece.folder.folder.rmdir()
        state = killed_once(problem, piece, note)
        assert not piece.folder.folder.exists()
        piece.folder.folder.mkdir()
        return state

    assert figures(prove_together(PROBLEM, pool=Watched(2, elsewhere), seconds=600)) == TRUTH


@pytest.mark.parametrize(("calls", "then"), [(2, 1), (9, None), (14, 4)])
def test_ctrl_c_keeps_what_the_workers_had_kept(calls, then):
    shown, kept = list[ProofProgress](), list[ProofState]()

    def press(now: ProofProgress) -> None:
        shown.append(now)
        if len(shown) == calls:
            raise KeyboardInterrupt

    part = prove_together(PROBLEM, pool=Serial(3), seconds=600, progress=press, keep=kept.append)
    assert part.interrupted
    assert len(shown) == calls
    assert tiles(PROBLEM, part)
    assert part.boxes == shown[-1].boxes == kept[-1].boxes
    assert 0 < part.undecided < TRUTH[0]
    assert part.fair <= TRUTH[1]
    assert part.discriminatory <= TRUTH[2]
    go_on = prove if then is None else partial(prove_together, pool=Serial(then))
    whole = go_on(PROBLEM, seconds=600, state=kept[-1])
    assert figures(whole) == TRUTH
    assert whole.boxes > part.boxes


def test_the_time_is_that_of_all():
    proofs = [prove_together(PROBLEM, pool=Serial(2), seconds=seconds) for seconds in (0, 4, 8)]
    for seconds, proof in zip((0, 4, 8), proofs, strict=True):
        assert proof.seconds < seconds + 3  # a few looks at the clock
        assert tiles(PROBLEM, proof)
        assert proof.fair <= TRUTH[1]
        assert proof.discriminatory <= TRUTH[2]
    assert proofs[0].boxes == 0
    assert proofs[0].undecided > proofs[1].undecided > proofs[2].undecided > 0


def test_pieces_that_begin_when_the_time_is_over_are_not_waited_for(clock, monkeypatch):
    monkeypatch.setattr(proving, "MIN_SECONDS_BETWEEN_STATES", -1.0)
    monkeypatch.setattr(proving, "MIN_KEEPING_INTERVALS", 0)
    begun = []

    def late(problem, piece, note):
        begun.append(piece.number)
        clock.seconds += 10 * (piece.number == 1)
        return distributed.continue_piece(problem, piece, note)

    proof = prove_together(PROBLEM, pool=Watched(3, late), seconds=5)
    assert begun == [0, 1]
    assert not proof.interrupted
    assert tiles(PROBLEM, proof)
    assert proof.undecided > 0


def test_a_black_box_is_asked_by_all():
    box = BlackBox(lambda rows: (rows[:, 0] + 2 * rows[:, 1] - rows[:, 3] > 2).double(), DOMAIN)
    decision = Decision("threshold", 0.5)
    problem = build_problem(box, DOMAIN, decision=decision)
    assert figures(prove_together(problem, pool=Serial(2), seconds=600)) == truth(box, DOMAIN, decision)


# In a folder

OPENED = wrap_model(NETWORK, DOMAIN, draw_records(DOMAIN).rows, decision=DECISION)


def proved(folder: Path, pool: Any, show: Callable[..., None] = lambda *_: None) -> Any:
    data = draw_records(DOMAIN)
    run = ProofRun.create_or_open(
        folder, data, ProofRequest(OPENED.decision), model="m.safetensors", weights=OPENED.fingerprint, outputs=1
    )
    return certify(PROBLEM, OPENED, ProofRecords.of(PROBLEM, data), 600.0, show=show, run=run, pool=pool)[0]


def reopened(folder: Path) -> ProofRun:
    arguments = {"model": "m.safetensors", "weights": OPENED.fingerprint, "outputs": 1}
    return ProofRun.create_or_open(folder, draw_records(DOMAIN), ProofRequest(OPENED.decision), **arguments)


def test_a_certificate_of_many_workers_holds(tmp_path):
    report = proved(tmp_path, Serial(3))
    assert report.complete
    found = check(tmp_path / CERTIFICATE, OPENED)
    assert (found.record_count, found.fair, found.discriminatory) == TRUTH
    assert not (tmp_path / SHARDS).exists()


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_when_all_are_killed_the_same_command_goes_on(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(proving, "MIN_SECONDS_BETWEEN_STATES", -1.0)
    monkeypatch.setattr(proving, "MIN_KEEPING_INTERVALS", 0)
    calls = Counter[int]()

    def dying(problem, piece, note):
        calls[piece.number] += 1
        if calls[1] == 2:  # of the second round piece 0 is done, piece 1 in the middle, and piece 2 has not begun
            steps = iter(range(2))
            distributed.continue_piece(problem, piece, lambda *_: next(steps))
        return distributed.continue_piece(problem, piece, note)

    with pytest.raises(RuntimeError, match="StopIteration"):
        proved(tmp_path, Watched(3, dying))
    files = sorted((tmp_path / SHARDS).rglob("*.state"))
    assert [path.name for path in files] == ["00000-of-00003.state", "00001-of-00003.state"]
    last = reopened(tmp_path).ledger.journal.parts["proof"][-1]
    content = files[0].read_bytes()
    if damage == "cut":
        files[0].write_bytes(content[:-1])
    elif damage == "flipped":
        files[0].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "gone":
        for path in files:
            path.unlink()
    state = reopened(tmp_path).state(CPU)
    assert PieceFolder(files[0].parent, 3).load(0, state.deal_piece(0, 3)) is None
    assert (state.boxes > last["boxes"]) == (damage != "gone")
    assert (state.seconds > last["seconds"]) == (damage != "gone")
    assert tiles(PROBLEM, proving.build_proof(PROBLEM, state, interrupted=True))
    assert proved(tmp_path, None if damage == "cut" else Serial(2)).complete
    assert check(tmp_path / CERTIFICATE, OPENED).discriminatory == TRUTH[2]
    assert not (tmp_path / SHARDS).exists()


# Files of pieces, by whomever


def some_state(**figures: float) -> ProofState:
    made = {"open": {"low": torch.arange(8).reshape(4, 2).int(), "fair": torch.rand(4).double()}}
    made["open"]["node"] = torch.arange(4)
    made["done"] = {name: column[:0] for name, column in made["open"].items()}
    cuts = CutTree.of_roots(4, CPU).nodes
    guides = Guides.from_points(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, 2, dtype=torch.int64))
    return ProofState(made["open"], made["done"], cuts, guides.columns, **{"boxes": 7, "seconds": 2.5, **figures})


WRONG = {
    "no check": {"check": None},
    "no boxes": {"boxes": None},
    "no seconds": {"seconds": None},
    "no column": {"open.fair": None},
    "another column": {"open.more": torch.zeros(4)},
    "a number that numpy does not know": {"open.fair": torch.zeros(4, dtype=torch.bfloat16)},
    "other numbers": {"open.fair": torch.zeros(4)},
    "another width": {"open.low": torch.zeros(4, 3, dtype=torch.int32)},
    "another length": {"open.fair": torch.zeros(3).double()},
    "many figures": {"boxes": torch.tensor([1, 2])},
    "fewer than none": {"boxes": torch.tensor(-1)},
    "no time": {"seconds": torch.tensor(torch.nan).double()},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_piece_whose_file_is_another_begins_again(tmp_path, wrong):
    state, kept = some_state(), PieceFolder(tmp_path, 1)
    kept.save(0, state)
    (path,) = tmp_path.iterdir()
    loaded = kept.load(0, state.deal_piece(0, 1))
    assert (loaded.boxes, loaded.seconds) == (7, 2.5)
    tensors = {name: tensor for name, tensor in (load_state(path, CPU) | WRONG[wrong]).items() if tensor is not None}
    checked = {name: tensor for name, tensor in tensors.items() if name != "check"}
    if "check" in tensors and not wrong.startswith("a number"):
        tensors["check"] = torch.tensor(_compute_checksum(checked))
    save_state(tensors, path)
    assert kept.load(0, state.deal_piece(0, 1)) is None
    assert recover_state(state, tmp_path).seconds == state.seconds


def test_a_piece_of_no_pieces_or_no_file_is_passed_over(tmp_path):
    state = some_state()
    for name in ("00000-of-00000.state", "00000-of-99999999999999999999.state", "x-of-00001.state"):
        (tmp_path / name).touch()
    assert recover_state(state, tmp_path) is state
    (tmp_path / "00000-of-00001.state").mkdir()
    assert recover_state(state, tmp_path).undecided_count == 4


def test_a_piece_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    state, kept = some_state(), PieceFolder(tmp_path, 1)
    kept.save(0, state)
    monkeypatch.setenv(SIZE_VARIABLE, "100")
    with pytest.raises(TooLargeError):
        kept.load(0, state)


def test_a_worker_that_still_saves_does_not_end_the_proof(tmp_path, monkeypatch):
    remove, busy = os.rmdir, []

    def rmdir(path: Any, **options: Any) -> None:
        if Path(path).name == SHARDS:
            busy.append(path)
            raise OSError(39, "Directory not empty")
        remove(path, **options)

    monkeypatch.setattr(os, "rmdir", rmdir)
    assert proved(tmp_path, Serial(2)).complete
    assert busy
