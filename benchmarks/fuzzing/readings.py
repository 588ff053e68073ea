"""What the package does with the files of strangers: each function is given the folder that they lie in."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unicodedata import category
from unittest.mock import patch

from neuronfair.errors import NeuronFairError

from . import specimens


@cache
def _people() -> Any:
    return specimens.people()


def _one(place: Path, pattern: str) -> Path:
    return next(place.glob(pattern))


def _use(domain: Any) -> None:
    """Do with a domain what is done before anything is written."""
    import torch

    rows = domain.sample(3, torch.Generator().manual_seed(0))
    if not bool(domain.valid(rows).all()):
        raise AssertionError("an invalid row was drawn")
    domain.key(rows)
    domain.to_table(rows)


def domain(place: Path) -> Any:
    """Read a domain file and use it."""
    from neuronfair.domain.schema.toml import read_domain

    found = read_domain(_one(place, "*.toml"))
    _use(found)
    return found


def table(place: Path) -> None:
    """Read a table of a known domain."""
    from neuronfair.domain.tables.dataset import read_table

    read_table(_one(place, "table.*"), _people().domain)


def draft(place: Path) -> None:
    """Read a table without a domain: draft one, use it, read the table by it."""
    _draft(_one(place, "table.*"), "sex", "income")


def _draft(path: Path, sensitive: str, target: str) -> None:
    from neuronfair.domain.schema.infer import infer_domain
    from neuronfair.domain.tables.dataset import read_table

    found = infer_domain(path, sensitive=[sensitive], target=target)
    _use(found)
    read_table(path, found)


def names(place: Path) -> None:
    """Read files whose names, or the names in them, are odd: whatever is said about them must be fit to be shown."""
    from neuronfair.audits.gate.thresholds import read_expressions
    from neuronfair.domain.tables.dataset import read_table
    from neuronfair.model.open import wrap_model

    path = _one(place, "*.csv")
    _refused(lambda: wrap_model(path, _people().domain, _people().rows))
    _refused(lambda: wrap_model(path.with_suffix(".onnx"), _people().domain, _people().rows))
    _refused(lambda: read_expressions([f"{path.stem}.rate > 1", path.stem], [path.stem], []))
    _refused(lambda: _draft(path, path.stem, "income"))
    read_table(path, domain(place))


class OddMessage(Exception):  # noqa: N818 - it is about the message of another one
    """An error that the command line does not show as one line of plain text."""


def fit_to_show(error: NeuronFairError) -> None:
    """Have the command line show an error; refuse what would break a line or steer a terminal."""
    from neuronfair.cli.app import main

    said = io.StringIO()
    with patch("neuronfair.cli.app.app", side_effect=error), redirect_stderr(said), suppress(SystemExit):
        main()
    line = said.getvalue().removesuffix("\n")
    odd = sorted({letter for letter in line if category(letter) in ("Cc", "Cs", "Zl", "Zp") or letter == "\u202e"})
    if odd or not str(error).strip():
        raise OddMessage(f"{[hex(ord(letter)) for letter in odd]} in {line[:300]!r}") from error


def _refused(read: Any) -> None:
    try:
        read()
    except NeuronFairError as error:
        fit_to_show(error)


def model(place: Path) -> None:
    """Open a model and try it."""
    from neuronfair.model.open import wrap_model

    wrap_model(_one(place, "model*"), _people().domain, _people().rows)


def pictures(place: Path) -> None:
    """Read pictures with their labels."""
    from neuronfair.images.archive import read_images

    found = read_images(place / "faces.zip", place / "faces.csv")
    _ = found.attribute("gender"), found.is_face


def run(place: Path) -> None:
    """Read all that a run folder holds."""
    from neuronfair.store.run import Run

    found = Run.open(place)
    found.findings()
    _ = found.summary, found.seeds, found.model
    found.control("random")
    for phase in ("pilot", "global", "local"):
        found.resume(phase)


def audit(place: Path) -> None:
    """Look at the folder of an audit as one that goes on does, and at a finding that it shows."""
    from neuronfair.audits.folder import check_audit_folder, check_same_audit, read_shrunk_pair
    from neuronfair.store.run import Run

    check_audit_folder(place)
    check_same_audit(place, {"sensitive": ["sex"]})
    found = Run.open(place / "sex" / "frontier")
    for number in range(3):
        read_shrunk_pair(found, number)
    run(found.folder)


def baseline(place: Path) -> None:
    """Compare an audit with an earlier one."""
    from neuronfair.audits.folder import read_report
    from neuronfair.audits.gate.checks import compare_with
    from neuronfair.audits.report import Report

    now = place / "now.json"
    earlier = read_report(place / "audit.json")
    report = Report.from_json(now.read_bytes()) if now.exists() else earlier
    replace(report, baseline=compare_with(report, earlier, "audit.json")).to_json()


def regression_set(place: Path) -> None:
    """Evaluate the records of a regression set again."""
    from neuronfair.audits.gate.regression_set import read_regression_set, replay_regression_set

    figures = replay_regression_set(read_regression_set(place / "regression_set.jsonl", _people().domain), _judge())
    if figures.still_flips + figures.fixed != figures.replayed:
        raise AssertionError("somebody neither flips nor is fixed")


@cache
def _judge() -> Any:
    from neuronfair.model.open import wrap_model

    return wrap_model(specimens.network()[0], _people().domain, _people().rows).model


def gate(place: Path) -> None:
    """Read a limit and hold an audit against it."""
    from neuronfair.audits.gate.thresholds import check_thresholds, read_expressions
    from neuronfair.audits.report import Report

    text = (place / "limit.txt").read_bytes().decode(errors="replace")
    _refused(lambda: read_expressions([text], ["sex", "", "a.rate"], ["frontier"]))
    check_thresholds(Report.from_json((place / "now.json").read_bytes()), [text])
