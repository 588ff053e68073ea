"""Findings as Parquet files: exact for the package, readable for everybody else."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronfair import TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.schema.toml import parse_domain
from neuronfair.errors import NeuronFairError, RunError
from neuronfair.searches.findings import Findings
from neuronfair.store.files import load_array
from neuronfair.store.tables import _find_distinct, read_findings, read_parquet, write_findings

MIXED = """
name = "mixed"
sensitive = ["sex", "race"]

[attributes]
age = { kind = "ordinal", low = 17, high = 90 }
height = { kind = "continuous", low = 0.1, high = 2.5, step = 0.1 }
debt = { kind = "ordinal", low = -3, high = 3 }
member = { kind = "flag" }
sex = { kind = "flag", values = ["F", "M"] }
race = { kind = "nominal", values = ["A", "B", "C"] }
rank = { kind = "ordinal", values = ["low", "middle", "high"] }
city = { kind = "nominal", values = ["", "?", "nan", " x", "x ", "x", "7", "Zürich 中", "a\\"b", "line\\nbreak"] }
"""


def findings(domain: TableDomain, count: int = 40, outputs: int = 2, *, seed: int = 0) -> Findings:
    """Findings with every number drawn at random, whatever a network would say."""
    generator = torch.Generator().manual_seed(seed)
    rows = domain.sample(count, generator)
    twins = domain.sample(count, generator)[:, list(domain.sensitive_columns)]
    scores = torch.randn(2, count, outputs, generator=generator)
    number = torch.randint(2**40, (2, count), generator=generator)
    packed = rows.to(domain.compact)
    usual = torch.rand(count, generator=generator)
    usual[::5] = torch.nan  # not known
    return Findings(packed, twins, *scores, *number, misses=packed[:0], plausibility=usual)


def assert_same(one: Findings, other: Findings, *, without: tuple[str, ...] = ()) -> None:
    """Every tensor and every count is the same, to the bit and to the type."""
    for field in fields(Findings):
        x, y = getattr(one, field.name), getattr(other, field.name)
        if field.name in without:
            continue
        if isinstance(x, torch.Tensor):
            assert x.dtype == y.dtype, field.name
            assert torch.equal(x.isnan(), y.isnan()), field.name
            assert torch.equal(x.nan_to_num(), y.nan_to_num()), field.name
        else:
            assert x == y, field.name


@pytest.fixture
def mixed() -> TableDomain:
    return parse_domain(MIXED)


@pytest.mark.parametrize("outputs", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 400])
def test_findings_come_back_as_they_were(tmp_path, mixed, count, outputs):
    there = findings(mixed, count, outputs)
    write_findings(tmp_path / "a.parquet", there, mixed)
    assert_same(read_findings(tmp_path / "a.parquet", mixed, outputs), there)
    assert [p.name for p in tmp_path.iterdir()] == ["a.parquet"]


@pytest.mark.parametrize(
    ("high", "compact"), [(100, torch.int8), (127, torch.int16), (30_000, torch.int16), (10**6, torch.int32)]
)
def test_every_compact_type(tmp_path, high, compact):
    domain = TableDomain("wide", (Attribute("a", "ordinal", low=0, high=high), Attribute("s", "flag")), ("s",))
    assert domain.compact == compact
    there = findings(domain)
    write_findings(tmp_path / "a.parquet", there, domain)
    assert_same(read_findings(tmp_path / "a.parquet", domain, 2), there)


@given(
    low=st.sampled_from([0, -7, 0.3, -2.5, 17, 1000]),
    step=st.sampled_from([1, 0.1, 0.01, 0.25, 3, 1 / 3, 7.5]),
    size=st.integers(1, 3000),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_every_grid_comes_back(tmp_path_factory, low, step, size, seed):
    path = tmp_path_factory.mktemp("grid") / "a.parquet"
    grid = Attribute("grid", "continuous", low=low, high=low + step * (size - 1), step=step)
    domain = TableDomain("grid", (grid, Attribute("s", "flag")), ("s",))
    there = findings(domain, seed=seed)
    write_findings(path, there, domain)
    assert_same(read_findings(path, domain, 2), there)


def test_people_can_read_the_cells(tmp_path, mixed):
    there = findings(mixed, 3)
    row = torch.tensor([22, 2, 0, 1, 0, 2, 1, 7])  # age 17 + 22, height 0.1 + 0.2, debt -3, …
    there.packed[0] = row
    there.twin_values[0] = torch.tensor([1, 0])
    write_findings(tmp_path / "a.parquet", there, mixed)
    table = pq.read_table(tmp_path / "a.parquet")
    first = table.slice(0, 1).to_pylist()[0]
    words = {"age": 39, "height": 0.3, "debt": -3, "member": 1, "sex": "F", "race": "C", "rank": "middle"}
    words |= {"city": "Zürich 中", "twin_sex": "M", "twin_race": "A"}
    assert {name: first[name] for name in words} == words
    assert table.column_names[-5:] == ["score_0", "score_1", "twin_score_0", "twin_score_1", "plausibility"]
    assert table["plausibility"].to_pylist() == [None, *there.plausibility[1:].tolist()]


def test_a_part_of_an_older_run_says_nothing_of_plausibility(tmp_path, mixed):
    there = findings(mixed)
    write_findings(tmp_path / "a.parquet", there, mixed)
    pq.write_table(pq.read_table(tmp_path / "a.parquet").drop_columns("plausibility"), tmp_path / "old.parquet")
    old = read_findings(tmp_path / "old.parquet", mixed, 2)
    assert_same(old, there, without=("plausibility",))
    assert old.plausibility.dtype == torch.float32
    assert old.plausibility.isnan().all()


def test_all_parts_of_a_run_have_one_schema(tmp_path, mixed):
    whole = findings(mixed, 5)
    whole.packed[:, 1] = 9  # a height of 1.0 everywhere, which looks like a whole number
    for name, part in (("a", whole), ("b", findings(mixed, 5)), ("c", findings(mixed, 0))):
        write_findings(tmp_path / f"{name}.parquet", part, mixed)
    schemas = [pq.read_schema(tmp_path / f"{name}.parquet") for name in "abc"]
    assert schemas[0].equals(schemas[1])
    assert schemas[0].equals(schemas[2])


def test_attributes_may_be_called_like_our_own_columns(tmp_path):
    names = ("origin", "step", "score_0", "twin_sex", "twin_sex_", "twin_score_1", "plausibility")
    columns = tuple(Attribute(name, "ordinal", low=0, high=9) for name in names)
    domain = TableDomain("odd", (*columns, Attribute("sex", "flag")), ("sex",))
    there = findings(domain)
    write_findings(tmp_path / "a.parquet", there, domain)
    assert_same(read_findings(tmp_path / "a.parquet", domain, 2), there)
    assert pq.read_table(tmp_path / "a.parquet")["origin"].to_pylist() == there.packed[:, 0].tolist()


def test_names_of_our_own_columns_do_not_meet(tmp_path):
    """The twin's value of `score_0` and the twin's first score would have one name, and so would those of two twins."""
    free = Attribute("twin_a", "ordinal", low=0, high=9)
    domain = TableDomain(
        "odd", (free, *(Attribute(name, "flag") for name in ("score_0", "a", "a_"))), ("score_0", "a", "a_")
    )
    there = findings(domain)
    write_findings(tmp_path / "a.parquet", there, domain)
    assert_same(read_findings(tmp_path / "a.parquet", domain, 2), there)
    table = pq.read_table(tmp_path / "a.parquet")
    assert table["twin_score_0"].to_pylist() == there.twin_values[:, 0].tolist()
    assert table["twin_score_0_"].to_pylist() == there.twin_scores[:, 0].tolist()
    assert table["score_0_"].to_pylist() == there.scores[:, 0].tolist()


def test_a_folder_name_is_not_taken_for_a_column(tmp_path, mixed):
    folder = tmp_path / "sex=M" / "other=1"
    folder.mkdir(parents=True)
    there = findings(mixed)
    write_findings(folder / "a.parquet", there, mixed)
    assert_same(read_findings(folder / "a.parquet", mixed, 2), there)


# Damage


def damaged(path, domain) -> str:
    """The error for a damaged file: one sentence or two that name it, and the file is still there."""
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(RunError) as caught:
        read_findings(path, domain, 2)
    message = str(caught.value)
    assert message.startswith(f"{path}: damaged or not a findings file")
    assert "\n" not in message
    assert (path.read_bytes() if path.exists() else None) == before
    return message


def test_a_file_that_is_cut_or_gone(tmp_path, mixed):
    path = tmp_path / "a.parquet"
    write_findings(path, findings(mixed), mixed)
    whole = path.read_bytes()
    for length in (0, 1, 4, 100, len(whole) // 2, len(whole) - 9, len(whole) - 1):
        path.write_bytes(whole[:length])
        damaged(path, mixed)
    path.write_bytes(b"nothing like it" * 100)
    damaged(path, mixed)
    path.unlink()
    damaged(path, mixed)


def test_a_file_of_another_domain(tmp_path, mixed):
    path = tmp_path / "a.parquet"
    write_findings(path, findings(mixed), mixed)
    assert "colour" in damaged(path, parse_domain(MIXED.replace("rank =", "colour =")))
    damaged(path, parse_domain(MIXED.replace('"middle"', '"medium"')))
    damaged(path, parse_domain(MIXED.replace("low = 17", "low = 50")))
    damaged(path, parse_domain(MIXED.replace("step = 0.1", "step = 0.35").replace("continuous", "ordinal")))


@pytest.mark.parametrize("array", [np.array(3), np.zeros((2, 3)), np.zeros((2, 4), dtype=np.int8)])
def test_an_array_of_another_form_is_refused(tmp_path, array):
    """Somebody may have made the folder, checksums included."""
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(RunError, match="an array of another shape or type"):
        load_array(tmp_path / "a.npy", 3)


def test_an_array_that_declares_more_than_it_holds_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 3), dtype=np.int8))
    content = (tmp_path / "a.npy").read_bytes().replace(b"(2, 3)", b"(99,3)")
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(RunError, match="is declared"):
        load_array(tmp_path / "a.npy", 3)


@given(st.lists(st.one_of(st.integers(-5, 5), st.integers(-(2**31), 2**31 - 1)), max_size=12))
def test_distinct_codes_are_those_of_numpy(codes):
    column = np.asarray(codes, dtype=np.int32)
    for mine, theirs in zip(_find_distinct(column), np.unique(column, return_inverse=True), strict=True):
        assert mine.tolist() == theirs.tolist()


def test_numbers_count_less_than_texts_towards_the_memory_of_a_file(tmp_path, monkeypatch):
    numbers, texts = tmp_path / "numbers.parquet", tmp_path / "texts.parquet"
    pq.write_table(pa.table({f"c{i}": pa.array(range(1_000), pa.int32()) for i in range(10)}), numbers)
    pq.write_table(pa.table({f"c{i}": pa.array(list(map(str, range(1_000)))) for i in range(10)}), texts)
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "200000")  # 10,000 cells: 160 kB of numbers, 320 kB of texts
    assert read_parquet(numbers).num_rows == 1_000
    with pytest.raises(NeuronFairError, match="of memory"):
        read_parquet(texts)
