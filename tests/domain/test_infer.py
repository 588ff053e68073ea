from __future__ import annotations

import pytest
import torch

from neuronfair import TableEncoding, infer_domain, read_table
from neuronfair.domain.toml import parse_domain
from neuronfair.errors import DataError

TABLE = """id,age,income,sex,height,city,smoker,children,name,note
1,31,high,F,1.751,Rome,yes,0,Ann,
2,45,low,M,1.8,Oslo,no,2,Bob,
3,,low,M,1.6204,,no,1,Cem,
4,62,high,F,1.70,Rome,yes,3,Dee,
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "people.csv"
    rows = TABLE.splitlines()
    body = [
        f"{i},{row.split(',', 1)[1].replace(',Ann,', f',Ann{i},').replace(',Bob,', f',Bob{i},')}"
        for i, row in enumerate(rows[1:] * 10)
    ]
    path.write_text("\n".join([rows[0], *body]) + "\n")
    return path


def test_kinds_are_recognised_and_the_draft_reads_its_own_table(table):
    text = infer_domain(table, sensitive=["sex"], target="income")
    domain = parse_domain(text)
    kinds = {a.name: a.kind for a in domain.attributes}
    assert kinds == {
        "age": "ordinal",
        "sex": "flag",
        "height": "continuous",
        "city": "nominal",
        "smoker": "flag",
        "children": "ordinal",
        "name": "nominal",
    }
    assert '# "id": left out' in text
    assert '# "note": left out, every cell is empty' in text
    city = domain.attributes[domain.column("city")]
    assert city.values == ("Oslo", "Rome", "missing")
    age = domain.attributes[domain.column("age")]
    assert (age.low, age.high, age.missing) == (31, 62, 45)
    data = read_table(table, domain)
    assert len(data) == 40
    assert domain.valid(data.rows).all()
    assert data.labels[:2].tolist() == [domain.target.classes.index("high"), domain.target.classes.index("low")]


def test_the_grid_of_decimal_numbers_keeps_them_apart(table):
    domain = parse_domain(infer_domain(table, sensitive=["sex"], target="income"))
    heights = domain.to_table(read_table(table, domain).rows)["height"]
    assert heights[:4] == pytest.approx([1.751, 1.8, 1.6204, 1.70], abs=1e-4)


@pytest.mark.parametrize(
    ("sensitive", "target", "message"),
    [
        (["gender"], "income", "no column 'gender'"),
        (["sex"], "incme", r"no column 'incme'.*Did you mean 'income'\?"),
        (["sex"], "sex", "both the target and sensitive"),
        (["sex"], "note", "the target 'note' is empty"),
        (["sex"], "age", "line 4: the target 'age' is empty"),
    ],
)
def test_wrong_columns(table, sensitive, target, message):
    with pytest.raises(Exception, match=message):
        infer_domain(table, sensitive=sensitive, target=target)


@pytest.mark.parametrize(("content", "message"), [("", "is empty"), ("a,b\n", "no rows after the header")])
def test_empty_files(tmp_path, content, message):
    path = tmp_path / "empty.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        infer_domain(path, sensitive=["a"], target="b")


def test_a_target_of_one_class_is_refused(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("a,b\n1,x\n2,x\n")
    with pytest.raises(DataError, match="has 1 different values"):
        infer_domain(path, sensitive=["a"], target="b")


def test_a_word_that_may_be_an_answer_is_pointed_out(tmp_path):
    path = tmp_path / "degrees.csv"
    path.write_text("sex,degree,hired\nF,none,yes\nM,BSc,no\nF,,no\nM,MSc,yes\nM,none,no\n", encoding="utf-8")
    draft = infer_domain(path, sensitive=["sex"], target="hired")
    assert '# 2 different, 3 empty; 2 of them say "none": an answer?' in draft


def test_steps_are_seen_and_dates_pointed_out(tmp_path):
    path = tmp_path / "loans.csv"
    rows = [
        f"{'FM'[i % 2]},{12 * (i % 7 + 1)},{3 * (i % 4)},{500 + 250 * i},20{i:02d}-01-31,{i % 3 % 2}" for i in range(30)
    ]
    path.write_text("\n".join(["sex,months,few,amount,born,paid", *rows]) + "\n", encoding="utf-8")
    draft = infer_domain(path, sensitive=["sex"], target="paid")
    domain = parse_domain(draft)
    grids = {a.name: (a.low, a.high, a.step) for a in domain.attributes if not a.values}
    # Four numbers may have a common step by chance.
    assert grids == {"months": (12, 84, 12), "few": (0, 9, 1), "amount": (500, 7750, 250)}
    assert domain.valid(read_table(path, domain).rows).all()
    assert '# "born": left out' in draft  # every one different
    repeated = path.read_text(encoding="utf-8").replace("2001-01-31", "2000-01-31")
    path.write_text(repeated, encoding="utf-8")
    assert "29 different; dates? As labels they have no order" in infer_domain(path, sensitive=["sex"], target="paid")


def test_a_column_of_two_numbers_stays_these_numbers(tmp_path):
    """Also for a model that reads them raw; 0 and 1 are what two labels become anyway."""
    path = tmp_path / "coded.csv"
    columns = {"sex": "12", "flag": "01", "five": ("0", "5"), "half": ("0.5", "2.0"), "big": ("1", "20000000000001")}
    rows = [[column[(i >> place) % 2] for place, column in enumerate(columns.values())] for i in range(32)]
    lines = [",".join([*row, "yn"[i % 3 == 0]]) for i, row in enumerate(rows)]
    path.write_text("\n".join([",".join([*columns, "hired"]), *lines]) + "\n", encoding="utf-8")
    draft = infer_domain(path, sensitive=["sex"], target="hired")
    domain = parse_domain(draft)
    assert {a.kind for a in domain.attributes} == {"flag"}
    assert [bool(a.values) for a in domain.attributes] == [False, True, False, False, False]
    data = read_table(path, domain)
    assert domain.valid(data.rows).all()
    assert TableEncoding.of(domain).encode(data.rows, torch.float64).tolist() == [
        [float(cell) for cell in row] for row in rows
    ]
    assert domain.to_table(data.rows)["sex"][:2] == [1, 2]


def test_one_number_spelled_in_two_ways_and_numbers_with_empty_cells_are_labels(tmp_path):
    path = tmp_path / "coded.csv"
    path.write_text("sex,same,some,hired\nF,1,1,yes\nM,1.0,2,no\nF,1,,no\n", encoding="utf-8")
    domain = parse_domain(infer_domain(path, sensitive=["sex"], target="hired"))
    assert [a.values for a in domain.attributes] == [("F", "M"), ("1", "1.0"), ("1", "2", "missing")]


def test_columns_that_a_model_reads_are_never_left_out(tmp_path):
    people = {"number": [f"n{i}" for i in range(600)], "age": list(range(600)), "sex": ["f", "m"] * 300}
    people |= {"job": ["cook"] * 600, "hired": ["no", "yes", "yes"] * 200}
    assert parse_domain(infer_domain(people, sensitive=["sex"], target="hired")).names == ("sex", "job")
    text = infer_domain(people, sensitive=["sex"], target="hired", columns=["number", "age"])
    assert parse_domain(text).names == ("number", "age", "sex")
