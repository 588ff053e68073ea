"""Populations in files: read as they were written, or refused with one error."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load, save

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.population.counterfactuals import fit_counterfactuals
from neuronfair.domain.population.model import fit_population
from neuronfair.domain.population.storage import (
    _digest_parts,
    _text_tensor,
    load_counterfactuals,
    load_population,
    save_counterfactuals,
    save_population,
)
from neuronfair.domain.rules import Rule, Span
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DataError
from neuronfair.limits import SIZE_VARIABLE, TooLargeError
from tests.planted.proxies import moved_domain, moved_rows

DOMAIN = TableDomain(
    "small",
    (
        Attribute("sex", "flag", values=("f", "m")),
        Attribute("age", "ordinal", low=0, high=90),
        Attribute("job", "nominal", values=("none", "clerk", "chief")),
    ),
    ("sex",),
    (Rule("children do not work", {"age": Span(high=13)}, {"job": ("none",)}),),
)


@pytest.fixture(scope="module")
def model():
    rows = DOMAIN.sample(300, torch.Generator().manual_seed(0))
    rows[:, 2] = torch.where(rows[:, 1] > 50, rows[:, 0] + 1, 0)
    return fit_population(DOMAIN, rows)


@pytest.fixture
def path(model, tmp_path):
    save_population(model, tmp_path / "population.safetensors")
    return tmp_path / "population.safetensors"


def test_what_is_read_is_what_was_written(model, path):
    read = load_population(path, DOMAIN)
    rows = DOMAIN.sample(500, torch.Generator().manual_seed(1))
    assert read.order == model.order
    assert torch.equal(read.log_likelihood(rows), model.log_likelihood(rows))
    assert torch.equal(read.plausibility(rows), model.plausibility(rows))
    drawn = [m.sample(500, torch.Generator().manual_seed(2)) for m in (read, model)]
    assert torch.equal(*drawn)
    again = path.with_name("again")
    save_population(read, again)
    assert again.read_bytes() == path.read_bytes()


def test_another_domain_is_refused(path):
    with pytest.raises(DataError, match="it is of another domain than other"):
        load_population(path, replace(DOMAIN, name="other"))


def test_a_file_that_is_not_there_or_too_large(path, monkeypatch):
    with pytest.raises(DataError, match=r"gone.*Fit it again"):
        load_population(path.with_name("gone"), DOMAIN)
    monkeypatch.setenv(SIZE_VARIABLE, "1000")
    with pytest.raises(TooLargeError):
        load_population(path, DOMAIN)


def test_every_changed_byte_is_found(path):
    content = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    for place in torch.randint(len(content), (60,), generator=generator).tolist():
        path.write_bytes(content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :])
        with pytest.raises(DataError, match="not a population that can be read"):
            load_population(path, DOMAIN)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="not a population that can be read"):
        load_population(path, DOMAIN)


def forged(path, name, change):
    """Change a part as somebody would who knows how files are sealed."""
    parts = load(path.read_bytes())
    del parts["digest"]
    sealed = {key: part for key, part in parts.items() if key != "domain"}
    sealed[name] = change(sealed[name].clone())
    path.write_bytes(save(sealed | {"domain": parts["domain"], "digest": _text_tensor(_digest_parts(sealed))}))


def test_a_small_file_cannot_ask_for_much_memory(path, model, monkeypatch):
    asked = model.trees.split_column.clone()
    leaf = int((asked == 3).nonzero()[0, 0])
    asked[leaf] = model.order[0]  # it asks, and has no children in the file
    lengths = torch.tensor([*model.trees.widths.tolist(), 1])[asked]
    forged(path, "trees.asks", lambda _: asked)
    forged(path, "trees.base", lambda _: lengths.cumsum(0) - lengths)
    spread, made = torch.Tensor.repeat_interleave, [0]

    def noted(part, times, *dim):
        made.append(int(torch.as_tensor(times).sum()))
        return spread(part, times, *dim)

    monkeypatch.setattr(torch.Tensor, "repeat_interleave", noted)
    with pytest.raises(DataError, match="its parts do not fit together"):
        load_population(path, DOMAIN)
    assert int(lengths.sum()) not in made


def put(place, value):
    def change(part):
        part[place] = value
        return part

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("order", put(0, 7)),
        ("order", lambda part: part.flip(0)),  # then trees ask later columns
        ("usual", put(0, float("nan"))),
        ("usual", lambda part: part.flip(0)),
        ("usual", lambda part: part[:0]),
        ("usual", lambda part: part.float()),
        ("trees.roots", put(0, 1)),
        ("trees.roots", put(1, 0)),
        ("trees.widths", put(1, 10**15)),
        ("trees.asks", put(-1, 9)),
        ("trees.asks", lambda part: part[:-1]),
        ("trees.base", put(-1, 10**12)),
        ("trees.children", put(-1, 10**12)),
        ("trees.children", put(0, -1)),
        ("trees.children", lambda part: part[:-1]),
        ("trees.children", lambda part: part * 0),
        ("trees.chances", put(0, 2.0)),
        ("trees.chances", put(0, 0.0)),
        ("trees.chances", lambda part: part[:-1]),
        ("places.starts", put(0, 1)),
        ("places.lengths", put(0, -1)),
        ("places.place", put(0, 50)),
        ("places.place", put(0, -1)),
        ("places.chance", put(0, 0.7)),
        ("places.classes", put(0, 1)),
        ("places.classes", lambda part: 1 - part),
        ("places.runs", put(0, 10**15)),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(path, name, change):
    forged(path, name, change)
    with pytest.raises(DataError, match="not a population that can be read"):
        load_population(path, DOMAIN)


PLAIN, ROWS = moved_domain(3), moved_rows(3)
ROWS = ROWS[(ROWS[:, 2] < 2) | (torch.arange(len(ROWS)) < 50)]  # few of the third group
TWINNED = replace(
    PLAIN, attributes=(PLAIN.attributes[0], replace(PLAIN.attributes[1], fixed=True), PLAIN.attributes[2])
)


@pytest.fixture(scope="module")
def counterfactuals():
    return fit_counterfactuals(TWINNED, ROWS)


@pytest.fixture
def counterfactual_path(counterfactuals, tmp_path):
    save_counterfactuals(counterfactuals, tmp_path / "counterfactuals.safetensors")
    return tmp_path / "counterfactuals.safetensors"


def test_counterfactual_what_is_read_is_what_was_written(counterfactuals, counterfactual_path):
    read = load_counterfactuals(counterfactual_path, TWINNED)
    assert read.fixed_columns == counterfactuals.fixed_columns == {1}
    assert read.groups.tolist() == counterfactuals.groups.tolist() == [True, True, False]
    for one, other in zip(read.twins(TWINNED, ROWS), counterfactuals.twins(TWINNED, ROWS), strict=True):
        assert torch.equal(one, other)
    for drawn, again in zip(read.draw(TWINNED, ROWS, 3), counterfactuals.draw(TWINNED, ROWS, 3), strict=True):
        assert torch.equal(drawn.rows, again.rows)
    save_counterfactuals(read, counterfactual_path.with_name("again"))
    assert counterfactual_path.with_name("again").read_bytes() == counterfactual_path.read_bytes()


def test_what_belongs_to_something_else_is_refused(counterfactuals, counterfactual_path):
    with pytest.raises(DataError, match="it is of another domain than other"):
        load_counterfactuals(counterfactual_path, replace(TWINNED, name="other"))
    for sensitive in ("a", "b"):  # as many groups as before, or not
        with pytest.raises(DataError, match=r"'groups' is of another form|first columns are not the sensitive ones"):
            load_counterfactuals(counterfactual_path, TWINNED.with_sensitive(sensitive))
    with pytest.raises(DataError, match="not a population that can be read"):
        load_population(counterfactual_path, TWINNED)  # which has no such parts
    save_population(counterfactuals.population, counterfactual_path)
    with pytest.raises(DataError, match=r"not a population that can be read \('kept'\)"):
        load_counterfactuals(counterfactual_path, TWINNED)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("kept", put(0, 2)),  # sensitive
        ("kept", put(0, 3)),
        ("kept", put(0, -1)),
        ("kept", lambda part: part.float()),
        ("kept", lambda part: part[None]),
        ("groups", lambda part: part[:-1]),
        ("groups", lambda part: part.long()),
        ("groups", put(0, False)),  # one group alone has nobody beside it
        ("order", put(0, 7)),
        ("trees.chances", put(0, 2.0)),
        ("latent.columns", put(0, 7)),
        ("latent.spread", put(0, -1.0)),
        ("latent.level", put(0, float("nan"))),
        ("latent.slopes", lambda part: part[:-1]),
        ("latent.pooled", put(0, -0.5)),
        ("latent.rest.lengths", put(0, 0)),
        ("latent.trees.chances", put(0, 2.0)),
        ("latent.trees.children", put(0, 10**6)),
        ("latent.trees.asks", put(0, 99)),
    ],
)
def test_counterfactual_parts_that_do_not_fit_together_are_refused(counterfactual_path, name, change):
    forged(counterfactual_path, name, change)
    with pytest.raises(DataError, match="not a population that can be read"):
        load_counterfactuals(counterfactual_path, TWINNED)


def test_an_order_that_does_not_begin_with_the_group_is_refused(counterfactuals, counterfactual_path):
    other = fit_counterfactuals(TWINNED.with_sensitive("a"), ROWS)
    save_counterfactuals(
        replace(other, fixed_columns=counterfactuals.fixed_columns, groups=counterfactuals.groups), counterfactual_path
    )
    with pytest.raises(DataError, match="its first columns are not the sensitive ones"):
        load_counterfactuals(counterfactual_path, TWINNED)


def test_a_file_that_is_damaged_gone_or_too_large(counterfactual_path, monkeypatch):
    content = counterfactual_path.read_bytes()
    for place in range(100, len(content), len(content) // 12):
        counterfactual_path.write_bytes(content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :])
        with pytest.raises(DataError, match="not a population that can be read"):
            load_counterfactuals(counterfactual_path, TWINNED)
    with pytest.raises(DataError, match=r"gone.*Fit it again"):
        load_counterfactuals(counterfactual_path.with_name("gone"), TWINNED)
    monkeypatch.setenv(SIZE_VARIABLE, "1000")
    with pytest.raises(TooLargeError):
        load_counterfactuals(counterfactual_path, TWINNED)
