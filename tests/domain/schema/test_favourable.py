"""The class that people hope for: guessed where the words are clear, and only there."""

from __future__ import annotations

import pytest

from neuronfair.domain.schema.infer import infer_domain
from neuronfair.domain.schema.toml import favourable_line, parse_domain, suggested
from neuronfair.domain.tables.dataset import DATASETS, ENCODINGS, catalog_domain


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
        assert suggested(column, order) == hoped
        assert favourable_line(column, order).startswith(f'# favourable = "{hoped}"  # ')


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
    assert suggested(column, classes) is None
    assert favourable_line(column, classes).startswith("# favourable = ")


def test_harm_suggests_the_other_class():
    assert favourable_line("arrested", ("no", "yes")).startswith('# favourable = "no"')


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
