"""CounterfactualTwins in files: read as they were written, or refused with one error."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from neuronfair.domain.population.counterfactuals import fit_counterfactuals
from neuronfair.domain.population.storage import (
    load_counterfactuals,
    load_population,
    save_counterfactuals,
    save_population,
)
from neuronfair.errors import DataError
from neuronfair.limits import VARIABLE, TooLarge
from tests.domain.population.test_storage import forged, put
from tests.planted.proxies import moved_domain, moved_rows

PLAIN, ROWS = moved_domain(3), moved_rows(3)
ROWS = ROWS[(ROWS[:, 2] < 2) | (torch.arange(len(ROWS)) < 50)]  # few of the third group
DOMAIN = replace(PLAIN, attributes=(PLAIN.attributes[0], replace(PLAIN.attributes[1], fixed=True), PLAIN.attributes[2]))


@pytest.fixture(scope="module")
def counterparts():
    return fit_counterfactuals(DOMAIN, ROWS)


@pytest.fixture
def path(counterparts, tmp_path):
    save_counterfactuals(counterparts, tmp_path / "counterparts.safetensors")
    return tmp_path / "counterparts.safetensors"


def test_what_is_read_is_what_was_written(counterparts, path):
    read = load_counterfactuals(path, DOMAIN)
    assert read.kept == counterparts.kept == {1}
    assert read.groups.tolist() == counterparts.groups.tolist() == [True, True, False]
    for one, other in zip(read.twins(DOMAIN, ROWS), counterparts.twins(DOMAIN, ROWS), strict=True):
        assert torch.equal(one, other)
    for drawn, again in zip(read.drawn(DOMAIN, ROWS, 3), counterparts.drawn(DOMAIN, ROWS, 3), strict=True):
        assert torch.equal(drawn.rows, again.rows)
    save_counterfactuals(read, path.with_name("again"))
    assert path.with_name("again").read_bytes() == path.read_bytes()


def test_what_belongs_to_something_else_is_refused(counterparts, path):
    with pytest.raises(DataError, match="it is of another domain than other"):
        load_counterfactuals(path, replace(DOMAIN, name="other"))
    for sensitive in ("a", "b"):  # as many groups as before, or not
        with pytest.raises(DataError, match=r"'groups' is of another form|first columns are not the sensitive ones"):
            load_counterfactuals(path, DOMAIN.with_sensitive(sensitive))
    with pytest.raises(DataError, match="not a population that can be read"):
        load_population(path, DOMAIN)  # which has no such parts
    save_population(counterparts.population, path)
    with pytest.raises(DataError, match=r"not a population that can be read \('kept'\)"):
        load_counterfactuals(path, DOMAIN)


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
def test_parts_that_do_not_fit_together_are_refused(path, name, change):
    forged(path, name, change)
    with pytest.raises(DataError, match="not a population that can be read"):
        load_counterfactuals(path, DOMAIN)


def test_an_order_that_does_not_begin_with_the_group_is_refused(counterparts, path):
    other = fit_counterfactuals(DOMAIN.with_sensitive("a"), ROWS)
    save_counterfactuals(replace(other, kept=counterparts.kept, groups=counterparts.groups), path)
    with pytest.raises(DataError, match="its first columns are not the sensitive ones"):
        load_counterfactuals(path, DOMAIN)


def test_a_file_that_is_damaged_gone_or_too_large(path, monkeypatch):
    content = path.read_bytes()
    for place in range(100, len(content), len(content) // 12):
        path.write_bytes(content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :])
        with pytest.raises(DataError, match="not a population that can be read"):
            load_counterfactuals(path, DOMAIN)
    with pytest.raises(DataError, match=r"gone.*Fit it again"):
        load_counterfactuals(path.with_name("gone"), DOMAIN)
    monkeypatch.setenv(VARIABLE, "1000")
    with pytest.raises(TooLarge):
        load_counterfactuals(path, DOMAIN)
