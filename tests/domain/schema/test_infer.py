from __future__ import annotations

import numpy as np
import pytest
import torch

from neuronfair import TableEncoding, infer_domain, read_table
from neuronfair.domain.cells import DECIMAL_MARKS
from neuronfair.domain.schema.column_types import ExcludedColumn, infer_column
from neuronfair.domain.schema.infer import InferenceSettings, draft_domain, guess_favourable, suggest_favourable
from neuronfair.domain.schema.toml import format_domain, parse_domain
from neuronfair.domain.tables import Cells
from neuronfair.domain.tables.dataset import DATASETS, ENCODINGS, catalog_domain
from neuronfair.errors import DataError
from neuronfair.model.open.frames import cells_of

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
    text = infer_domain(table, sensitive=["sex"], target="income").to_toml()
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
    domain = infer_domain(table, sensitive=["sex"], target="income")
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
    with pytest.raises(DataError, match="has 1 value; 2 to"):
        infer_domain(path, sensitive=["a"], target="b")


def test_a_word_that_may_be_an_answer_is_pointed_out(tmp_path):
    path = tmp_path / "degrees.csv"
    path.write_text("sex,degree,hired\nF,none,yes\nM,BSc,no\nF,,no\nM,MSc,yes\nM,none,no\n", encoding="utf-8")
    draft = infer_domain(path, sensitive=["sex"], target="hired").to_toml()
    assert '# 2 different, 3 empty; 2 of them say "none": an answer?' in draft


def test_steps_are_seen_and_dates_pointed_out(tmp_path):
    path = tmp_path / "loans.csv"
    rows = [
        f"{'FM'[i % 2]},{12 * (i % 7 + 1)},{3 * (i % 4)},{500 + 250 * i},20{i:02d}-01-31,{i % 3 % 2}" for i in range(30)
    ]
    path.write_text("\n".join(["sex,months,few,amount,born,paid", *rows]) + "\n", encoding="utf-8")
    draft = infer_domain(path, sensitive=["sex"], target="paid").to_toml()
    domain = parse_domain(draft)
    grids = {a.name: (a.low, a.high, a.step) for a in domain.attributes if not a.values}
    assert grids.pop("born") == (10987, 21580, 1)  # days since 1970
    # Four numbers may have a common step by chance.
    assert grids == {"months": (12, 84, 12), "few": (0, 9, 1), "amount": (500, 7750, 250)}
    assert domain.valid(read_table(path, domain).rows).all()
    born = domain.attributes[domain.column("born")]
    assert (born.value(0), born.value(366), born.value(born.size - 1)) == ("2000-01-31", "2001-01-31", "2029-01-31")


def test_a_column_of_two_numbers_stays_these_numbers(tmp_path):
    """Also for a model that reads them raw; 0 and 1 are what two labels become anyway."""
    path = tmp_path / "coded.csv"
    columns = {"sex": "12", "flag": "01", "five": ("0", "5"), "half": ("0.5", "2.0"), "big": ("1", "20000000000001")}
    rows = [[column[(i >> place) % 2] for place, column in enumerate(columns.values())] for i in range(32)]
    lines = [",".join([*row, "yn"[i % 3 == 0]]) for i, row in enumerate(rows)]
    path.write_text("\n".join([",".join([*columns, "hired"]), *lines]) + "\n", encoding="utf-8")
    draft = infer_domain(path, sensitive=["sex"], target="hired").to_toml()
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
    domain = infer_domain(path, sensitive=["sex"], target="hired")
    assert [a.values for a in domain.attributes] == [("F", "M"), ("1", "1.0"), ("1", "2", "missing")]


def drafted(folder, made, rows=200, separator=",", target="hired", **asked):
    """The draft for a table of sex, hired and these columns, each a function of the row; the domain reads the table."""
    made = {"sex": lambda i: "FM"[i % 2], **made, "hired": lambda i: "yn"[i % 3 == 0]}
    lines = [separator.join(made), *(separator.join(str(c(i)) for c in made.values()) for i in range(rows))]
    path = folder / "people.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = InferenceSettings(**asked)
    draft = draft_domain(path, sensitive=["sex"], target=target, settings=settings)
    domain = draft.domain
    assert parse_domain(domain.to_toml()) == domain
    data = read_table(path, domain)
    assert domain.valid(data.rows).all()
    assert parse_domain(format_domain(domain)) == domain
    return draft, {a.name: a for a in domain.attributes}, domain.to_table(data.rows)


def test_numbers_of_any_spelling(tmp_path):
    draft, found, table = drafted(
        tmp_path,
        {
            "debt": lambda i: f'"${1000 + i * 10:,.2f}"' if i % 2 else f"$ {i}",
            "share": lambda i: f"{i / 2}%",
            "loss": lambda i: f"(1{i % 7})" if i % 7 else "0",
            "mixed": lambda i: f"{i % 9}%" if i % 2 else i % 9,  # what would 5 beside 5% be?
        },
    )
    assert table["debt"][:2] == [0, 1010]
    assert table["share"][:3] == [0, 0.5, 1]
    assert table["loss"][:3] == [0, -11, -12]
    assert found["mixed"].kind == "nominal"
    assert "share: 0.0% is read as 0" in draft.remarks


def test_a_decimal_comma_is_kept_in_the_domain_file(tmp_path):
    columns = {
        "wage": lambda i: f"{i % 3 + 1}.{i % 1000:03d},5",
        "height": lambda i: f"1,{i % 90 + 10}",
        "clicks": lambda i: f"1.{i % 50:03d}",  # by itself it might be 1.012; beside the others it is 1,012
        "age": lambda i: 20 + i % 50,
    }
    draft, found, table = drafted(tmp_path, columns, separator=";")
    assert table["wage"][1:3] == pytest.approx([2001.5, 3002.5], abs=0.5)  # on a grid
    assert table["height"][:2] == [1.1, 1.11]
    assert table["clicks"][:2] == [1000, 1001]
    assert [name for name, a in found.items() if a.decimal == ","] == ["wage", "height", "clicks"]
    assert "clicks: 1.000 is read as 1000" in draft.remarks
    _, found, _ = drafted(tmp_path, {"clicks": columns["clicks"]}, separator=";")
    assert found["clicks"].decimal == "."
    assert found["clicks"].high == pytest.approx(1.049)


def test_empty_cells_among_decimal_commas_have_the_median(tmp_path):
    _, found, table = drafted(tmp_path, {"wage": lambda i: f"{i % 50},5" if i % 7 else ""}, separator=";")
    assert found["wage"].missing == table["wage"][0] == pytest.approx(25, abs=1.1)


def test_dates_become_days_and_are_shown_as_dates(tmp_path):
    draft, found, table = drafted(
        tmp_path,
        {
            "iso": lambda i: f"20{i % 20:02d}-03-01 12:30:00" if i else "",
            "german": lambda i: f"{i % 28 + 1:02d}.12.1999",
            "unclear": lambda i: f"{i % 12 + 1}/{i % 11 + 1}/2001",
            "american": lambda i: f"{i % 12 + 1}/{i % 28 + 1}/2001",
        },
    )
    assert table["german"][:2] == ["01.12.1999", "02.12.1999"]
    assert table["american"][14] == "03/15/2001"
    assert found["german"].low == 10926  # days since 1970
    assert found["iso"].value(found["iso"].codes([""])[0]) == table["iso"][0]
    assert table["iso"][1] == "2001-03-01"
    assert 'unclear: day and month may be the other way round: date = "%d/%m/%Y"' in draft.remarks
    assert not any("american" in remark and "other way" in remark for remark in draft.remarks)


def test_identifiers_are_left_out_and_measurements_are_not(tmp_path):
    columns = {
        "row": lambda i: i,
        "shuffled": lambda i: (i * 77) % 200 + (i * 77) % 200 // 2,  # with gaps
        "rising": lambda i: 10**6 * i if i else 999_999,  # two are neighbours
        "account_id": lambda i: (i * 7919 + 13) % 999_983 * 1013,
        "visitId": lambda i: (i // 2 * 2 if i < 20 else i) * 7919 % 99_991 * 1013,  # ten come twice
        "uuid": lambda i: f"{i:x}-abc",
        "word": lambda i: f"note {i}" if i % 20 else "none of these",
        "income": lambda i: i * i * 7919 % 99_991 + 0.5,
        "salary": lambda i: (i * 7919 + 13) % 999_983 * 1013,
        "paid": lambda i: (i * 7919 + 13) % 999_983 * 1013,
        "age": lambda i: 20 + i * 7 % 60,
        "always": lambda i: "DE",
        "never": lambda i: "",
    }
    draft, found, _ = drafted(tmp_path, columns)
    assert [*found] == ["sex", "income", "salary", "paid", "age"]
    reasons = {one.column: one.reason for one in draft.left_out}
    assert reasons["row"] == reasons["shuffled"] == reasons["rising"] == "an identifier: every cell is different"
    assert reasons["visitId"] == "an identifier: almost all cells are different"
    assert reasons["uuid"] == "names or free text: every cell is different"
    assert reasons["always"] == "constant: DE in every row"
    assert reasons["never"] == "every cell is empty"
    assert '# "always": left out, constant: DE in every row' in draft.text
    assert "salary, paid: almost every cell is different: leave it out if it only numbers people" in draft.remarks


def test_an_empty_column_that_the_model_reads_has_one_value():
    found = infer_column("note", Cells.of(["", "?", ""]), DECIMAL_MARKS, keep=True)
    assert found.parts == {"kind": "nominal", "values": ["missing"], "missing": "missing"}
    assert found.comment.startswith("0 different, 3 empty")
    assert infer_column("note", Cells.of([]), DECIMAL_MARKS, keep=True) == ExcludedColumn("note", "every cell is empty")


def test_the_columns_of_the_model_are_kept_and_no_others(tmp_path):
    columns = {"id": lambda i: i, "always": lambda i: "DE", "name": lambda i: f"n{i}", "age": lambda i: i % 70}
    draft, found, _ = drafted(tmp_path, columns, columns=["id", "always", "name"])
    assert [*found] == ["sex", "id", "always", "name"]
    assert [(one.column, one.reason) for one in draft.left_out] == [("age", "the model does not read it")]


def test_codes_keep_their_zeros_and_what_is_mostly_empty_is_said(tmp_path):
    columns = {
        "postcode": lambda i: f"0{1591 + i % 5}",
        "coded": lambda i: 1 + i % 2,
        "seldom": lambda i: i if i % 20 == 0 else "",
    }
    draft, found, table = drafted(tmp_path, columns)
    assert found["postcode"].values == ("01591", "01592", "01593", "01594", "01595")
    assert cells_of(found["postcode"])[0] == 1591  # what pandas makes of it, and so a model
    assert table["coded"][:2] == [1, 2]
    assert "seldom: 95% of the cells are empty" in draft.remarks


def test_seldom_labels_are_pooled(tmp_path):
    def firm(i: int) -> str:
        return f"firm {i % 120}" if i < 1000 else f"rare {i % 500}" if i % 4 else ""

    draft, found, table = drafted(tmp_path, {"firm": firm}, rows=2000)
    attribute = found["firm"]
    assert len(attribute.values) == 102
    assert attribute.values[-2:] == ("missing", "other")
    assert table["firm"][0] == "firm 0"
    assert table["firm"][1001] == "other"
    assert any("the 100 most frequent" in remark for remark in draft.remarks)
    assert attribute.codes(["never seen", ""]).tolist() == [101, 100]
    given = cells_of(attribute)[101]  # what a model is given for 'other': the most frequent of those that it stands for
    assert given in attribute.extra
    assert given.startswith("firm")
    assert draft.text.count("other") >= 2

    def own(i: int) -> str:
        return "other" if i == 0 else firm(i)

    _, found, table = drafted(tmp_path, {"firm": own}, rows=2000)
    assert found["firm"].extra == {}
    assert table["firm"][0] == "other"


def test_free_text_is_left_out_unless_the_model_reads_it(tmp_path):
    columns = {"note": lambda i: f"some text {i % 150}"}
    draft, _, _ = drafted(tmp_path, columns)
    assert [one.reason for one in draft.left_out] == ["names or free text: 150 different texts"]
    _, _, table = drafted(tmp_path, columns, columns=["note"])
    assert table["note"].count("other") == 50


def test_a_copy_of_a_column_and_an_index_of_pandas_are_left_out(tmp_path):
    path = tmp_path / "people.csv"
    lines = [f"{'FM'[i % 2]},{i % 7},{i % 7},{i % 5},{i % 3},{i + 5},{'yn'[i % 3 == 0]}" for i in range(30)]
    path.write_text("\n".join(["sex,score,score,prior,prior,__index_level_0__,hired", *lines]) + "\n")
    draft = draft_domain(path, sensitive=["sex"], target="hired")
    assert [(one.column, one.reason) for one in draft.left_out] == [
        ("score.1", "a copy of 'score'"),
        ("__index_level_0__", "the index of a pandas table"),
    ]
    domain = draft.domain
    assert domain.names == ("sex", "score", "prior", "prior.1")
    assert len(read_table(path, domain)) == 30
    with pytest.raises(DataError, match="names the column 'prior' twice"):
        draft_domain(path, sensitive=["prior"], target="hired")


def test_a_regression_has_no_classes(tmp_path):
    draft, _, _ = drafted(tmp_path, {"price": lambda i: f"{i / 7:.3f}"}, target="price", regression=True)
    assert 'target = { column = "price" }' in draft.text
    with pytest.raises(DataError, match="line 2: the target 'hired' is 'n'; a number is expected"):
        drafted(tmp_path, {}, regression=True)


def test_odd_cells_break_no_line_of_the_draft(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text('sex,a,b,hired\nF,"$1\n",x\x1b,y\nM,$2,"p\nq",n\nM,$3,z,n\n', encoding="utf-8")
    domain = infer_domain(path, sensitive=["sex"], target="hired")
    assert read_table(path, domain).rows[:, 1].tolist() == [0, 1, 2]


def entry(values):
    found = infer_column("x", Cells.of([f"{value:.9g}" for value in values]), DECIMAL_MARKS, keep=True)
    assert not isinstance(found, ExcludedColumn)
    return parse_domain(f"sensitive = ['s']\n[attributes]\n{found}\ns = {{ kind = 'flag' }}").attributes[0], found


def test_outliers_do_not_dictate_the_step():
    draw = np.random.default_rng(0)
    util = np.concatenate([draw.random(1980), draw.random(20) * 50_000])
    found, line = entry(util)
    assert found.step <= 0.005  # a hundred steps between the quartiles
    assert found.grid_size <= 100_002
    assert found.outliers == "clip"
    assert found.low <= util.min()
    assert found.high > 10
    beyond = (util > found.high).sum()
    assert f"{beyond} of 2,000 cells are outside 0 to {found.high:g}" in str(line)
    codes = found.codes([f"{value:.9g}" for value in util])
    inside = util <= found.high
    assert np.abs(found.low + found.step * codes - util)[inside].max() <= found.step / 2 + 1e-9
    assert (codes[~inside] == found.grid_size - 1).all()


def test_outliers_on_both_sides_are_clipped_on_both():
    draw = np.random.default_rng(1)
    found, _ = entry(np.concatenate([draw.normal(size=2000), [-1e6, 1e7]]))
    assert found.step == 0.01
    assert -1e6 < found.low < -100
    assert 100 < found.high < 1e7


def test_a_number_that_most_cells_have_does_not_hide_the_others():
    draw = np.random.default_rng(2)
    amounts = np.where(draw.random(2000) < 0.95, 0.0, draw.random(2000) * 1e5)
    found, _ = entry(amounts)
    assert found.outliers is None
    assert 1 <= found.step <= 100


def test_ordinary_decimals_keep_the_step_that_their_range_allows():
    found, _ = entry(np.random.default_rng(3).normal(size=2000))
    assert (found.step, found.outliers) == (0.001, None)


def test_whole_numbers_stay_exact_unless_they_are_too_many():
    draw = np.random.default_rng(4)
    exact, _ = entry(draw.integers(0, 90_000, 500))
    assert (exact.kind, exact.step) == ("ordinal", 1)
    wide, line = entry(draw.integers(0, 21_480_001, 2000))
    assert wide.kind == "continuous"
    assert (wide.step, wide.outliers) == (1000, None)
    assert "in generated records rounded to steps of 1000" in str(line)
    outlier, _ = entry([*draw.integers(0, 100, 1000), 21_480_000])
    assert (outlier.step, outlier.outliers, outlier.grid_size) == (1, "clip", 100_001)


def grouped(**counts):
    race = [label for label, count in counts.items() for _ in range(count)]
    return {"race": race, "age": [20 + i % 50 for i in range(len(race))], "y": [i % 2 for i in range(len(race))]}


def test_small_groups_and_unknown_ones_are_left_out_of_the_twins():
    table = grouped(white=500, black=300, tiny=5) | {}
    table["race"][:40] = [None] * 40
    draft = draft_domain(table, sensitive=["race"], target="y")
    assert any("tiny (5 records) and missing (40 records) left out of the twins" in said for said in draft.remarks)
    data = read_table(table, draft.domain)
    twins, valid = data.domain.twins(data.rows)
    labels = np.array(data.domain.attributes[0].values)[twins[valid][:, 0]]
    assert set(labels) == {"white", "black"}
    assert len(data.in_compared_groups) == 760  # though all records are compared
    assert valid.any(1).all()


def test_at_least_two_groups_stay_and_those_of_a_small_table_all():
    domain = infer_domain(grouped(white=500, tiny=5, few=3), sensitive=["race"], target="y")
    assert [list(rule.when.values()) for rule in domain.rules] == [[("few",)]]
    assert not infer_domain(grouped(a=20, b=10, c=8), sensitive=["race"], target="y").rules


def test_columns_that_say_the_same_are_tied():
    draw = np.random.default_rng(5)
    level = draw.integers(1, 7, 400)
    table = {
        "sex": draw.choice(["f", "m"], 400).tolist(),
        "education": [f"level {'abcdefg'[number]}" for number in level],
        "education_num": level.tolist(),
        "noise": draw.random(400).tolist(),
        "other": draw.random(400).tolist(),
        "y": draw.integers(0, 2, 400).tolist(),
    }
    table["is_male"] = [int(sex == "m") for sex in table["sex"]]
    draft = draft_domain(table, sensitive=["sex"], target="y")
    assert "education_num and education fix one another, value by value: both are kept together" in draft.remarks
    assert any(said.startswith("is_male: is a copy of the sensitive attribute sex") for said in draft.remarks)
    domain = draft.domain
    assert len(domain.rules) == 6
    rows = domain.sample(500, torch.Generator().manual_seed(0))
    drawn = domain.to_table(rows)
    assert all("abcdefg".index(a[-1]) == b for a, b in zip(drawn["education"], drawn["education_num"], strict=True))
    assert domain.valid(read_table(table, domain).rows).all()
    table["education_num"][0] = table["education_num"][0] % 6 + 1  # one exception, and they are no copies
    assert not infer_domain(table, sensitive=["sex"], target="y").rules


@pytest.mark.parametrize(
    ("column", "classes", "hoped"),
    [
        ("hired", ("no", "yes"), "yes"),
        ("LoanApproved", ("Y", "N"), "Y"),
        ("credit_risk", ("bad", "good"), "good"),  # these words speak for themselves
        ("loan", ("Denied", "Approved"), "Approved"),
        ("offer", ("accepted", "rejected"), "accepted"),
        ("status", ("Charged Off", "Fully Paid"), "Fully Paid"),
        ("outcome", ("default", "paid"), "paid"),
        ("exam", ("fail", "pass"), "pass"),
        ("decision", ("hired", "not_hired"), "hired"),
        ("benefit", ("False", "True"), "True"),
    ],
)
def test_clear_words_are_suggested_and_not_taken(column, classes, hoped):
    for order in (classes, classes[::-1]):
        assert suggest_favourable(column, order) == hoped
        assert guess_favourable(column, order)[0] == hoped


@pytest.mark.parametrize(
    ("column", "classes"),
    [
        ("hired", ("0", "1")),
        ("income", ("<=50K", ">50K")),
        ("two_year_recid", ("no", "yes")),
        ("LoanDefault", ("no", "yes")),
        ("loandefault", ("False", "True")),
        ("is_fraud", ("N", "Y")),
        ("churned", ("no", "yes")),
        ("application_denied", ("no", "yes")),
        ("late_payment", ("no", "yes")),
        ("offer_withdrawn", ("no", "yes")),
        ("Loan_Status", ("Y", "N")),  # of which question?
        *(
            (name, ("no", "yes"))
            for name in ("exited", "infected", "malignant", "hiv", "obese", "withdrawn", "sanctioned")
        ),
        ("grade", ("good", "fair", "bad")),
        ("decision", ("approved", "bad")),  # no opposites
        ("decision", ("approved", "pending")),
    ],
)
def test_doubtful_words_are_left_to_the_user(column, classes):
    assert suggest_favourable(column, classes) is None
    assert guess_favourable(column, classes)[0] in classes


def test_harm_suggests_the_other_class():
    assert guess_favourable("arrested", ("no", "yes"))[0] == "no"


def test_the_draft_of_a_domain_suggests_it_in_a_comment(tmp_path):
    for target, hint in (("hired", "yes"), ("fraud", "no")):
        path = tmp_path / f"{target}.csv"
        path.write_text(
            f"sex,age,{target}\n" + "".join(f"{'FM'[i % 2]},{i % 40},{('no', 'yes')[i % 3 == 0]}\n" for i in range(60))
        )
        text = infer_domain(path, sensitive=["sex"], target=target).to_toml()
        assert parse_domain(text).favourable is None
        assert f'\n# favourable = "{hint}"' in text


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_of_the_catalogue_names_its_favourable_outcome(name, encoding):
    assert catalog_domain(name, encoding).favourable is not None


def test_infinite_numbers_are_named():
    wage = [float("inf") if i == 7 else i % 9 + 0.5 for i in range(60)]
    table = {"wage": wage, "all": [float("-inf"), *range(59)], "sex": ["f", "m"] * 30, "y": [0, 1, 1] * 20}
    draft = draft_domain(table, sensitive=["sex"], target="y")
    assert any(
        remark.startswith("wage: has numbers such as inf, so each number is a label") for remark in draft.remarks
    )
    assert draft.left_out == (ExcludedColumn("all", "has numbers such as -inf: replace them, or leave them empty"),)


def test_many_small_groups_are_counted():
    table = {"group": [f"g{i}" for i in range(20)] + ["a", "b"] * 60, "age": list(range(70)) * 2, "y": [0, 1] * 70}
    draft = draft_domain(table, sensitive=["group"], target="y")
    assert any("g11 (1 record), g12 (1 record) and 15 more left out of the twins" in said for said in draft.remarks)
    assert len(draft.domain.rules) == 20
