"""The classes of a model are matched with those of the domain by what they are, never by a rounded number."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from neuronfair import certify, parse_domain
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.cells import canonical_number
from neuronfair.model.open import wrap_model
from neuronfair.model.open.frames import category_cells, cells_of
from neuronfair.model.open.names import describe_classes, match_classes

pd = pytest.importorskip("pandas", reason="the package pandas is not installed")


def domain_of(*classes):
    listed = ", ".join(f'"{c}"' for c in classes)
    return parse_domain(f"""
sensitive = ["sex"]
target = {{ column = "y", classes = [{listed}] }}
[attributes]
age = {{ kind = "ordinal", low = 0, high = 19 }}
sex = {{ kind = "ordinal", low = 0, high = 1 }}
""")


@pytest.mark.parametrize(
    ("classes", "own", "order"),
    [
        (["1000001", "1000002"], np.array([1000002, 1000001]), [1, 0]),
        (["1000001", "1000002"], np.array([1000001.0, 1000002.0]), [0, 1]),  # of pandas, whose column has empty cells
        (["0.3", "0.30000000000000004"], np.array([0.1 + 0.2, 0.3]), [1, 0]),
        (["10000000000000000", "10000000000000001"], np.array([10**16 + 1, 10**16]), [1, 0]),
        (["0", "1"], np.array([-0.0, 1.0]), [0, 1]),
        (["0", "1"], np.array([False, True]), [0, 1]),
        (["1", "0"], np.array([np.int64(0), np.float64(1.0)]), [1, 0]),
        (["1", "True"], [True, 1], [1, 0]),  # the same texts go before the same numbers
        (["007", "7"], ["7", "007"], [1, 0]),
        (["1", "1.0", "True"], [1, 2, 3], None),
        (["007", "7"], [7, 8], None),
        (["1", "2"], [1, True], None),  # two of its classes are one number
        (["1e999999999", "2"], ["2", "1E999999999"], [1, 0]),
        (["nan", "1"], [float("nan"), 1], [0, 1]),
        (["yes", "no"], ["no", "yes "], [1, 0]),
    ],
)
def test_only_the_same_classes_are_matched(classes, own, order):
    domain = domain_of(*classes)
    assert match_classes(domain, own) == order
    assert bool(describe_classes(domain, own)) == (order is None)


@pytest.mark.parametrize("model", [LogisticRegression(), DecisionTreeClassifier(max_depth=3)], ids=repr)
def test_classes_of_seven_digits_are_not_one_class(model):
    domain = domain_of("1000001", "1000002")
    rows = torch.tensor(list(product(range(20), range(2))))
    table = pd.DataFrame({"age": rows[:, 0].numpy(), "sex": rows[:, 1].numpy()})
    model.fit(table, np.where(table.age + 8 * table.sex > 13, 1000002, 1000001))
    opened = wrap_model(model, domain, rows)
    chosen = np.array([1000001, 1000002])[opened.decision.decide(opened.model.scores(rows))]
    assert (chosen == model.predict(table)).all()
    flips = sum(a != b for a, b in chosen.reshape(20, 2)) * 2
    assert flips > 0
    report = certify(model, domain)
    assert report.complete
    assert int(report.proved_discriminatory.count) in (flips, flips // 2)  # people are counted without their sex


def test_spellings_are_one_only_for_the_same_number():
    same = [(1, 1.0, "1", "1.0", np.int64(1), np.float32(1)), (0.1, np.float32(0.1), "0.10"), (-0.0, 0, "0", "-0.0")]
    same += [(1e16, 10**16, "1E16"), (np.nan, "nan", "NaN"), (10**16 + 1, "10000000000000001")]
    keys = [{canonical_number(one) for one in group} for group in same]
    assert all(len(key) == 1 for key in keys)
    others = {canonical_number(x) for x in (1000001, 1000002, 0.1 + 0.2, 0.3, True, "yes", 10**16 + 2)}
    assert len(others) == 7
    assert len(set.union(others, *keys)) == 7 + len(keys)


def test_categories_of_sixteen_digits_and_of_rounded_numbers_are_found():
    ids = Attribute("id", "nominal", values=("10000000000000000", "10000000000000001"))
    assert list(cells_of(ids).values()) == [10**16, 10**16 + 1]
    column = category_cells(ids, [10**16 + 1, 10**16])
    assert list(column.of_codes(np.array([0, 1]))) == [10**16, 10**16 + 1]
    grid = Attribute("share", "continuous", low=0.0, high=1.0, step=0.1)
    known = [0.1 * k for k in range(11)]  # 0.30000000000000004 among them
    assert list(category_cells(grid, known).of_codes(np.arange(11))) == known


def test_truth_is_not_the_number_one_among_cells():
    attribute = Attribute("a", "nominal", values=("1", "True", "0", "False"))
    given = [1, True, 0, False, np.True_, 1.0, "1", "True", np.int64(0)]
    assert attribute.codes(given).tolist() == [0, 1, 2, 3, 1, 0, 0, 1, 2]
    assert attribute.codes(np.array([True, False])).tolist() == [1, 3]
