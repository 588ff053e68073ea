from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronfair.domain.attribute import Attribute, check_graph, find_parents
from neuronfair.domain.schema.toml import format_domain, parse_domain
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables import Cells
from neuronfair.domain.tables.dataset import limit_domain
from neuronfair.errors import CellError, DomainError

AGE = Attribute("age", "ordinal", low=17, high=90)
SEX = Attribute("sex", "flag", values=("F", "M"))
GRID = Attribute("x", "continuous", low=-1.0, high=1.0, step=0.1)


def test_codes_count_from_the_low_end():
    assert AGE.codes([17, "18", 90.0, np.int64(20)]).tolist() == [0, 1, 73, 3]
    assert AGE.size == 74


def test_labels_are_positions_and_text_is_stripped():
    assert SEX.codes(["M", " F "]).tolist() == [1, 0]
    assert SEX.value(0) == "F"


def test_continuous_numbers_go_to_the_nearest_grid_point():
    assert GRID.size == 21
    assert GRID.codes([-1, 0.04, 0.06, 1]).tolist() == [0, 10, 11, 20]
    assert GRID.value(13) == 0.3  # not 0.30000000000000004


def test_ordinal_numbers_must_be_on_the_grid():
    with pytest.raises(DomainError, match=r"row 2: attribute 'age': 17\.5 is not on the grid"):
        AGE.codes([17, 17.5])


def test_labels_that_look_like_numbers_match_numbers():
    code = Attribute("code", "nominal", values=("1", "2"))
    assert code.codes([1, 2.0, "2"]).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["M", "Mle"], r"row 2: attribute 'sex': unknown value 'Mle'\. Known: F, M\."),
        (["M", ""], "row 2: attribute 'sex': the cell is empty.*missing = "),
        ([float("nan")], "row 1: attribute 'sex': the cell is empty"),
    ],
)
def test_bad_label_cells_are_named(cells, message):
    with pytest.raises(DomainError, match=message):
        SEX.codes(cells)


@pytest.mark.parametrize(("cell", "message"), [("x", "expected a number"), (16, "outside 17 to 90"), ("inf", "finite")])
def test_bad_numbers_are_named(cell, message):
    with pytest.raises(DomainError, match=message):
        AGE.codes([20, cell])


def test_numbers_outside_can_be_kept():
    assert AGE.codes([16, 91], outside="keep").tolist() == [-1, 74]
    assert AGE.value(-1) == 16


def test_missing_cells_take_the_declared_value():
    work = Attribute("work", "nominal", values=("Private", "unknown"), missing="unknown")
    assert work.codes(["?", "Private", None, "NaN"]).tolist() == [1, 0, 1, 1]
    assert Attribute("age", "ordinal", low=17, high=90, missing=40).codes([""]).tolist() == [23]
    published = Attribute("work", "ordinal", values=("Private", "Gov"), missing=100, extra={"Holand": 40})
    assert published.codes(["?", "Holand", "Gov"]).tolist() == [100, 40, 1]
    assert [published.value(c) for c in (100, 40, 7)] == ["missing", "Holand", "code 7"]


def test_nan_of_numpy_and_pandas_is_a_missing_cell():
    pandas = pytest.importorskip("pandas")
    age = Attribute("age", "ordinal", low=17, high=90, missing=40)
    for kind in (np.float64, np.float32, object):
        assert age.codes(np.array([17, np.nan, 18, np.nan], dtype=kind)).tolist() == [0, 23, 1, 23]
    assert age.codes(pandas.Series([17, None, 18])).tolist() == [0, 23, 1]
    assert age.codes(pandas.Series([17, None], dtype="Int64")).tolist() == [0, 23]
    work = Attribute("work", "nominal", values=("Private", "unknown"), missing="unknown")
    assert work.codes(pandas.Series(["Private", None, float("nan")])).tolist() == [0, 1, 1]
    with pytest.raises(DomainError, match="row 2: attribute 'age': the cell is empty"):
        AGE.codes(np.array([17, np.nan, np.nan]))


def test_a_declared_label_is_not_missing():
    assert Attribute("children", "nominal", values=("None", "One")).codes(["None"]).tolist() == [0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "nominal"}, "needs values"),
        ({"kind": "ordnal"}, "Did you mean 'ordinal'"),
        ({"kind": "flag", "values": ("a", "b", "c")}, "exactly two values, this has 3"),
        ({"kind": "nominal", "values": ("a", "b", "a")}, "'a' is listed twice"),
        ({"kind": "ordinal", "low": 5, "high": 1}, "low <= high"),
        ({"kind": "ordinal", "step": 0}, "step > 0"),
        ({"kind": "ordinal", "low": float("nan")}, "finite"),
        ({"kind": "ordinal", "scale": 0}, "scale > 0"),
        ({"kind": "ordinal", "encode": "hot"}, "encode 'hot' is unknown"),
        ({"kind": "nominal", "values": ("a", "b"), "missing": "c"}, "'c' is not one of its values"),
    ],
)
def test_wrong_declarations_are_refused(options, message):
    with pytest.raises(DomainError, match=message):
        Attribute("x", **options)


@given(st.integers(-1000, 1000), st.integers(1, 400), st.sampled_from([0.01, 0.1, 0.5, 1, 3]))
def test_every_code_round_trips_through_its_value(low, size, step):
    attribute = Attribute("x", "ordinal", low=low, high=low + step * (size - 1), step=step)
    assert attribute.size == size
    codes = np.arange(size)
    assert attribute.codes([attribute.value(int(c)) for c in codes]).tolist() == codes.tolist()


def test_a_value_that_is_listed_twice_is_found_among_many():
    values = [str(i) for i in range(100_000)]
    with pytest.raises(DomainError, match="value '7' is listed twice"):
        Attribute("a", "nominal", values=(*values, "7"))


def test_how_cells_are_read_is_no_part_of_a_fingerprint():
    plain = Attribute("wage", "ordinal", low=0, high=9000)
    comma = Attribute("wage", "ordinal", low=0, high=9000, decimal=",")
    assert repr(plain) == repr(comma)
    assert comma.codes(["1.234", "5 €", "7,0"]).tolist() == [1234, 5, 7]
    assert plain.codes(["1,234", "$5", "7.0", "(0)"]).tolist() == [1234, 5, 7, 0]
    with pytest.raises(DomainError, match=r"expected a number, got '1\.5'"):
        comma.codes(["1.5"])


def test_dates_are_days():
    born = Attribute("born", "ordinal", low=0, high=400, date="%d.%m.%Y", missing="02.01.1970")
    assert born.codes(["01.01.1970", "01.02.1970", ""]).tolist() == [0, 31, 1]
    assert born.value(364) == "31.12.1970"
    with pytest.raises(DomainError, match=r"expected a date such as 01\.01\.1970, got 'soon'"):
        born.codes(["soon"])


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"decimal": ";"}, 'decimal must be "." or ","'),
        ({"date": "%d.%m"}, 'expected "iso" or a form'),
        ({"date": "%d%d"}, 'expected "iso" or a form'),
        ({"date": "iso", "high": 1e9}, "needs dates as low and high"),
        ({"date": "iso", "step": 0.5}, "a step of whole days"),
        ({"other": "x"}, "other = 'x' is not one of its values"),
    ],
)
def test_wrong_ways_to_read_cells(entries, says):
    with pytest.raises(DomainError, match=says):
        Attribute("a", "continuous", **entries)


@pytest.mark.parametrize("bad", ["x", "99", "2.5", "inf", "1e300"])
def test_the_first_bad_cell_of_many_numbers_is_named(bad):
    column = Cells.of(["1", "2", "", "2", bad, "3", bad])
    with pytest.raises(CellError) as error:
        Attribute("n", "ordinal", low=0, high=9, missing=0).codes(column)
    assert error.value.row == 4


def test_outliers_count_as_the_nearest_bound():
    clipped = Attribute("util", "continuous", low=0, high=2, step=0.5, outliers="clip")
    assert clipped.codes(Cells.of(["0.6", "5e4", "-3", "2"])).tolist() == [1, 4, 0, 4]
    assert clipped.codes([0.6, 5e4, -3, 2]).tolist() == [1, 4, 0, 4]
    with pytest.raises(CellError, match="finite"):
        clipped.codes(Cells.of(["inf"]))
    with pytest.raises(DomainError, match='outliers must be "clip"'):
        Attribute("util", "continuous", outliers="drop")
    with pytest.raises(DomainError, match="for numbers only"):
        Attribute("sex", "flag", values=("F", "M"), outliers="clip")


def test_bands_have_names_and_a_value_each():
    age = Attribute("age", "ordinal", low=17, high=90, bands=(25, 40, 60))
    assert age.band_starts == (0, 8, 23, 43)
    assert [age.band(code) for code in (0, 7, 8, 42, 43, 73)] == [0, 0, 1, 2, 3, 3]
    assert [age.value(code) for code in age.band_codes] == [20, 32, 49, 75]  # in the middle of each
    assert [age.group_name(code) for code in age.band_codes] == [
        "below 25",
        "25 to below 40",
        "40 to below 60",
        "60 or more",
    ]
    told = Attribute("age", "ordinal", low=17, high=90, bands=(25,), band_values=(20, 50))
    assert [told.value(code) for code in told.band_codes] == [20, 50]
    assert AGE.group_name(3) == "20"


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"bands": (40, 25)}, "ascend"),
        ({"bands": (17,)}, "above low"),
        ({"bands": (25,), "missing": "keep"}, "no value of its own"),
        ({"bands": (25,), "band_values": (30, 50)}, "one number of each of the 2 bands"),
        ({"bands": (25,), "band_values": (20,)}, "one number of each of the 2 bands"),
        ({"band_values": (20,)}, "bands are for numbers"),
    ],
)
def test_bands_that_cannot_be_are_refused(said, error):
    with pytest.raises(DomainError, match=error):
        Attribute("age", "ordinal", low=17, high=90, **said)


def attributes(**causes):
    return tuple(
        Attribute(name, "flag", values=("no", "yes"), causes=None if of is None else tuple(of))
        for name, of in causes.items()
    )


def test_columns_that_others_depend_on():
    assert find_parents(attributes(sex="", job=["sex"], pay=["job", "sex"])) == {0: [], 1: [0], 2: [1, 0]}
    assert find_parents(attributes(sex=None, job=["sex"], pay=None)) == {0: [], 1: [0], 2: []}
    assert find_parents(attributes(sex=None, job=None)) is None


@pytest.mark.parametrize("reads", [check_graph, find_parents])
def test_a_circle_and_an_unknown_cause_are_refused_in_a_sentence(reads):
    with pytest.raises(
        DomainError, match=r"^causes go round in a circle: '\w+' -> '\w+' -> '\w+'. Remove one of them$"
    ):
        reads(attributes(sex=None, job=["pay"], pay=["job"]))
    with pytest.raises(DomainError, match=r"^causes go round in a circle: 'job' -> 'job'"):
        reads(attributes(sex=None, job=["job"]))
    with pytest.raises(DomainError, match=r"^attribute 'job': causes names 'sxe', which is no attribute.*'sex'"):
        reads(attributes(sex=None, job=["sxe"]))


def test_the_causes_of_an_attribute_that_is_left_out_stand_in_for_it():
    domain = TableDomain("people", attributes(sex=None, school=["sex"], job=["school", "sex"], pay=["job"]), ("sex",))
    fewer = limit_domain(domain, {"sex", "pay"})
    assert [a.causes for a in fewer.attributes] == [(), ("sex",)]
    fewer = limit_domain(domain, {"sex", "school", "pay"})
    assert [a.causes for a in fewer.attributes] == [(), ("sex",), ("school", "sex")]


def test_a_graph_stays_one_where_all_that_has_causes_is_left_out():
    domain = TableDomain("people", attributes(sex=None, age=None, pay=["sex"]), ("sex",))
    assert find_parents(limit_domain(domain, {"sex", "age"}).attributes) == {0: [], 1: []}


def test_what_is_said_of_counterfactuals_is_written_and_read():
    sex, job, pay, age = attributes(sex=None, job=["sex"], pay=["job", "sex"], age=())
    domain = TableDomain("people", (sex, replace(job, legitimate=True), pay, replace(age, fixed=True)), ("sex",))
    again = parse_domain(format_domain(domain))
    assert again.attributes == domain.attributes
    assert [(a.fixed, a.legitimate, a.causes) for a in again.attributes] == [
        (False, False, None),
        (False, True, ("sex",)),
        (False, False, ("job", "sex")),
        (True, False, ()),
    ]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("causes = [3]", "pay.*causes"),
        ("fixed = 1", "pay.*fixed"),
        ("fixed = true, legitimate = true", "pay.*is fixed and legitimate: set one of the two"),
        ('causes = ["pay"]', "circle"),
        ('causes = ["pya"]', "'pya', which is no attribute"),
    ],
)
def test_a_domain_file_that_says_it_wrongly_is_refused_in_a_sentence(entry, says):
    flag = 'kind = "flag", values = ["no", "yes"]'
    with pytest.raises(DomainError, match=says) as error:
        parse_domain(f'sensitive = ["sex"]\n[attributes]\nsex = {{ {flag} }}\npay = {{ {flag}, {entry} }}\n')
    assert "\n" not in str(error.value)


def test_the_numbers_of_a_domain_file_have_a_decimal_point_whatever_the_table_has():
    wage = Attribute("wage", "continuous", low=0, high=9, step=0.5, decimal=",", missing=2.5)
    assert wage.codes(["", "1,5"]).tolist() == [5, 3]
    bands = Attribute("wage", "continuous", low=0, high=9, step=0.5, decimal=",", bands=(4.0,), band_values=(1.5, 6.5))
    assert bands.band_codes == (3, 13)
