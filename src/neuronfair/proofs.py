"""Proofs in Python: any model and any table or domain in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from neuronfair.certify.answer import Effort, answer, asked_about
from neuronfair.certify.report import ProofReport
from neuronfair.domain.data import Data
from neuronfair.domain.table import TableDomain
from neuronfair.domain.toml import read_domain
from neuronfair.model.decision import Decision
from neuronfair.model.open import open_model
from neuronfair.render.console import progress_bar
from neuronfair.scale.pool import Pool
from neuronfair.verdict.given import drawn_from, given


class Seldom(TypedDict, total=False):
    """What `prove` is seldom told: how to open the model, and who proves."""

    preprocess: Callable[[Any], Any] | str | None  # from a table to the inputs of a torch or Keras model
    decision: Decision | None  # what counts as another decision; by default as the outputs suggest
    weights: Path | None  # a safetensors file for `package.module:name`
    trust_pickle: bool  # open files that can run a program
    pool: Pool | None  # workers that prove together


def prove(
    model: Any,
    data: Data | TableDomain | Any,
    *,
    sensitive: str | Sequence[str] | Any | None = None,
    where: str = "",
    seconds: float = 60.0,
    rows: int = 200,
    target: str | None = None,
    device: str = "cpu",
    **seldom: Unpack[Seldom],
) -> ProofReport:
    """Prove for how many people the decision cannot flip when only a sensitive attribute changes.

    Model and table are whatever `audit` takes; a domain, or its TOML file, does without a table. `where` asks about
    some people only. Of so many `rows` of the table it is said, too, whether everybody near them is proved free of
    flips. What is neither proved fair nor proved discriminatory is open: nothing is known of these people. Ctrl-C ends
    it with what is proved. The workers of a `pool` prove together. `neuronfair certify` does the same in a folder that
    survives a kill, with a certificate.

    >>> people = {"age": [20, 30, 40, 50] * 9, "sex": ["f", "m", "m"] * 12, "hired": ["no", "yes", "no", "yes"] * 9}
    >>> def model(table):
    ...     return (table.age > 45) | ((table.age > 25) & (table.sex == "m"))
    >>> report = prove(model, people, sensitive="sex", target="hired", rows=0)
    >>> report.complete, report.proved_discriminatory
    (True, Part(count='40', share=0.6451612903225806))
    """
    opens: Mapping[str, Any] = {name: value for name, value in seldom.items() if name != "pool"}
    if isinstance(data, (str, Path)) and Path(data).suffix.lower() == ".toml":
        data = read_domain(data)
    alone = isinstance(data, TableDomain)
    if isinstance(data, TableDomain):
        data = drawn_from(data)
    table = given(
        data,
        model=None if seldom.get("preprocess") is not None else model,  # else its inputs are not the table's columns
        sensitive=sensitive,
        target=target,
        decision=seldom.get("decision"),
        opens=lambda data: open_model(model, data.domain, data.rows, **opens),
        trust_pickle=seldom.get("trust_pickle", False),
    ).data
    opened = open_model(model, table.domain, table.rows, **opens)
    subject = asked_about(opened, table.domain, where, device)
    with progress_bar("Proving") as bar:
        effort = Effort(seconds, 0 if alone else rows)
        return answer(
            subject,
            opened,
            table,
            effort,
            show=lambda what, *rest: bar(*rest, what=what),
            pool=seldom.get("pool"),
        )
