from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from neuronfair import infer_domain, parse_domain, read_table
from neuronfair.domain.rules import Span
from neuronfair.domain.schema import rule_mining
from neuronfair.domain.schema.infer import InferenceSettings, draft_domain
from neuronfair.domain.schema.rule_mining import MAX_EXCEPTIONS, MIN_RECORDS
from neuronfair.domain.tables import sources
from neuronfair.errors import DomainError

N = 1000


def people(n=N, seed=0, **columns):
    """A table with a sex and a target that have nothing to do with the other columns."""
    rng = np.random.default_rng(seed)
    sex = np.where(rng.random(n) < 0.5, "f", "m")
    return {**columns, "sex": sex.tolist(), "hired": np.where(rng.random(n) < 0.5, "yes", "no").tolist()}


def suggested(table, sensitive=("sex",), take="all"):
    """The rules of a table that are adopted, by name, and the domain."""
    domain = infer_domain(table, sensitive=sensitive, target="hired", take_rules=take)
    return {rule.name: rule for rule in domain.rules}, domain


def uncommented(text):
    """The text with all rules that it suggests."""
    head, mark, rules = text.partition("## Rules that the table suggests")
    rules, _, _ = rules.partition("# Further rules")
    return head + mark + "\n".join(line.removeprefix("# ") for line in rules.split("\n"))


@pytest.fixture(scope="module")
def aged():
    """Ages in three bands, of whom two people are in a wrong one."""
    ages = np.tile(np.arange(18, 68), N // 50)
    bands = np.array(["young", "middle", "old"])[np.digitize(ages, [25, 46])]
    bands[[0, 999]] = "old", "young"  # of 18 and of 67 years
    return people(age=ages.tolist(), band=bands.tolist())


def test_a_number_that_fixes_a_band_is_said_band_by_band(aged):
    rules, _ = suggested(aged)
    said = {rule.when["band"]: rule.then["age"] for rule in rules.values()}
    assert said == {("young",): Span(high=24), ("middle",): Span(25, 45), ("old",): Span(46)}


def test_the_rows_that_break_a_rule_are_those_that_were_counted(aged):
    draft = draft_domain(aged, sensitive=["sex"], target="hired", settings=InferenceSettings(take_rules="free"))
    assert "## age fixes band: 1,000 people, 2 exceptions\n[[rules]]" in draft.text
    assert draft.remarks[-1] == "1 rule is suggested: see the end of the domain file; 1 adopted"
    data = read_table(aged, draft.domain)
    assert (~data.domain.valid(data.rows)).nonzero()[:, 0].tolist() == [0, 999]


def test_nobody_contradicts_himself_once_the_rules_are_taken_over(aged):
    def contradicting(take):
        _, domain = suggested(aged, take=take)
        table = domain.to_table(domain.sample(2000, torch.Generator().manual_seed(0)))
        pairs = zip(table["age"], table["band"], strict=True)
        return sum((age < 25) != (band == "young") or (age > 45) != (band == "old") for age, band in pairs)

    assert contradicting("none") > 500
    assert contradicting("all") == 0


def test_numbers_that_do_not_occur_between_two_bands_go_with_both():
    pay = np.tile([10, 11, 12, 20, 21, 22], 200)
    rules, domain = suggested(people(1200, pay=pay.tolist(), band=np.where(pay < 15, "low", "high").tolist()))
    assert {rule.when["band"]: rule.then["pay"] for rule in rules.values()} == {
        ("low",): Span(high=19),
        ("high",): Span(13),
    }
    assert domain.count == 2 * (10 + 10)  # 10 to 19 are low, 13 to 22 are high


def test_a_recoding_is_said_once_and_so_is_a_chain():
    towns = np.tile(["Rome", "Pisa", "Oslo", "Bergen", "Paris"], 200)
    lands = np.array([{"Rome": "I", "Pisa": "I", "Paris": "F"}.get(town, "N") for town in towns])
    rules, domain = suggested(people(town=towns.tolist(), land=lands.tolist(), south=(lands != "N").tolist()))
    # Seven pairs of columns and values in all, and each fits together with one land and one south only.
    assert domain.count == 2 * 5
    assert rules["land I: town Pisa or Rome"].then == {"town": ("Pisa", "Rome")}
    assert len({frozenset({*rule.when, *rule.then}) for rule in rules.values()}) == 2


def test_two_columns_that_name_the_same_are_tied_in_both_directions():
    grade = np.tile(np.arange(1, 5), 250)
    rules, domain = suggested(people(grade=grade.tolist(), word=np.array(list("?cadb"))[grade].tolist()))
    assert {rule.when["word"][0]: rule.then["grade"] for rule in rules.values()} == {
        "a": (2,),
        "b": (4,),
        "c": (1,),
        "d": (3,),
    }
    assert domain.count == 2 * 4


def relatives(husbands, women=0, n=3000):
    """Some husbands, of whom some are women; of all others half are."""
    role = np.array(["husband"] * husbands + ["wife", "child", "other"] * n)[:n]
    sex = np.where(np.arange(n) % 2 == 0, "f", "m")
    sex[:husbands] = "m"
    sex[:women] = "f"
    return {**people(n), "role": role.tolist(), "sex": sex.tolist()}


def test_a_husband_is_male_and_that_ties_the_sensitive_attribute():
    table = relatives(1000, women=2)
    draft = draft_domain(table, sensitive=["sex"], target="hired")
    assert (
        "## 1,000 people, 2 exceptions\n## ties sex, which is sensitive: such people then have no twin\n" in draft.text
    )
    assert '# if = { role = "husband" }\n# then = { sex = "m" }\n' in draft.text
    assert draft.domain.rules == ()
    assert "1 rule is suggested, 1 on a sensitive attribute" in draft.remarks[-1]
    assert "not used unless --take-rules says free or all" in draft.remarks[-1]
    assert suggested(table, take="free")[0] == {}
    rules, domain = suggested(table, take="all")
    assert rules["role husband: sex m"].then == {"sex": ("m",)}
    twins = domain.twins(domain.from_table({"role": ["husband", "wife"], "sex": ["m", "m"]}))
    assert twins.valid.tolist() == [[False], [True]]


@pytest.mark.parametrize(("husbands", "women"), [(199, 0), (1000, 3), (150, 0)])
def test_too_few_people_or_too_many_exceptions_suggest_nothing(husbands, women):
    assert suggested(relatives(husbands, women))[0] == {}


def test_few_exceptions_are_sure_to_be_few():
    """Whatever may be proposed: the upper end of Wilson's interval of the exceptions is below 2%."""
    for count in (MIN_RECORDS, *range(500, 20_000, 500)):  # the fewest people of whom so many may be exceptions
        assert binomtest(int(MAX_EXCEPTIONS * count), count).proportion_ci(method="wilson").high < 0.02


@pytest.mark.parametrize(("share", "said"), [(40, ["rare True: other False"]), (67, [])])
def test_what_nearly_everybody_has_anyway_is_no_rule(share, said):
    """Chance would bring 37 and 13 people with both, and there are none; but 66 of 67 are as it says anyway."""
    place = np.arange(60000) % share
    table = people(60000, rare=(place == 0).tolist(), other=(place == 1).tolist())
    assert [*suggested(table)[0]] == said


def test_the_condition_is_what_fewer_people_have():
    place = np.arange(20000)
    table = people(20000, kind=np.where(place % 2, "b", "a").tolist(), rare=(place % 100 == 1).tolist())
    assert [*suggested(table)[0]] == ["rare True: kind b"]


def test_two_amounts_are_never_both_positive():
    place = np.arange(4000)
    gain, loss = np.where(place % 10 == 0, 50 + place // 4, 0), np.where(place % 10 == 1, 7 + place // 4, 0)
    rules, _ = suggested(people(4000, gain=gain.tolist(), loss=loss.tolist()))
    assert [(rule.when, rule.then) for rule in rules.values()] == [({"gain": Span(1), "loss": Span(1)}, {})]


def test_a_class_whose_people_have_a_range_of_numbers():
    age = np.tile(np.arange(80), 50)
    status = np.where(age < 16, "minor", np.where(np.arange(4000) // 80 % 2, "married", "single"))
    status[age == 15] = "single"  # so that no function fits
    rules, _ = suggested(people(4000, age=age.tolist(), status=status.tolist()))
    said = {rule.when["status"]: rule.then["age"] for rule in rules.values()}
    assert said[("minor",)] == Span(high=14)


def test_dates_are_written_as_dates_and_read_again():
    days = np.datetime64("2000-01-01") + np.tile(np.arange(100), 20)
    wave = np.where(days < np.datetime64("2000-02-01"), "first", "second")
    text = infer_domain(
        people(2000, day=days.astype(str).tolist(), wave=wave.tolist()), sensitive=["sex"], target="hired"
    ).to_toml()
    assert "# then = { day = { max = 2000-01-31 } }" in text
    assert parse_domain(uncommented(text)).rules[0].then == {"day": Span(high=10987)}


def test_an_empty_cell_that_was_filled_says_nothing():
    """Most ages are not known, of those who did not answer and of others: the median is nobody's age."""
    place = np.arange(4000)
    age = [str(20 + i % 50) if i % 4 == 0 else "" for i in place]
    answer = ["yes" if i % 4 == 0 else "no" for i in place]
    assert suggested(people(4000, age=age, answer=answer))[0] == {}


def test_unrelated_columns_suggest_nothing():
    def found(seed):
        rng = np.random.default_rng(seed)
        table = people(
            800,
            seed,
            age=rng.integers(18, 80, 800).tolist(),
            town=rng.choice(list("abcdefgh"), 800, p=[0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.04, 0.01]).tolist(),
            gain=np.where(rng.random(800) < 0.7, 0, rng.integers(1, 9999, 800)).tolist(),
            flag=(rng.random(800) < 0.1).tolist(),
            wave=rng.integers(0, 4, 800).tolist(),
        )
        return any("suggested" in one for one in draft_domain(table, sensitive=["sex"], target="hired").remarks)

    assert sum(map(found, range(100))) == 0


def test_large_tables_are_looked_at_in_part_and_counted_in_all(monkeypatch):
    table = relatives(3000, women=1, n=9000)
    monkeypatch.setattr(rule_mining, "SAMPLED_ROWS", 3000)
    text = infer_domain(table, sensitive=["sex"], target="hired").to_toml()
    assert "## 3,000 people, 1 exception\n" in text
    assert text == infer_domain(table, sensitive=["sex"], target="hired").to_toml()


def test_of_a_wide_table_some_columns_are_looked_at_the_sensitive_ones_first(monkeypatch):
    table = {"noise": np.tile(["a", "b"], 1500).tolist(), **relatives(1000)}
    monkeypatch.setattr(rule_mining, "MAX_COLUMNS", 2)
    assert "role" not in str(suggested(table)[0])
    assert "role husband: sex m" in suggested({key: table[key] for key in table if key != "noise"})[0]
    both = {**relatives(1000), "noise": table["noise"]}
    text = infer_domain(
        {key: both[key] for key in ("role", "sex", "hired", "noise")}, sensitive=["sex"], target="hired"
    ).to_toml()
    assert "## 1 column of this wide table were not examined." in text


def test_rules_that_make_too_many_cases_are_dropped_and_named(aged, monkeypatch):
    monkeypatch.setattr(rule_mining, "MAX_CASES", 2)  # three bands are too many
    bits = np.arange(N) % 2
    table = {**aged, "bit": bits.tolist(), "tib": (1 - bits).tolist()}
    draft = draft_domain(table, sensitive=["sex"], target="hired", settings=InferenceSettings(take_rules="all"))
    assert "## Dropped, as all together would be too many cases: age fixes band\n" in draft.text
    assert draft.domain.count == 2 * 50 * 3 * 2


def test_an_unknown_way_to_take_rules_over_is_refused(aged):
    with pytest.raises(DomainError, match="take rules 'some': expected none, free, all"):
        infer_domain(aged, sensitive=["sex"], target="hired", take_rules="some")


HOSTILE = ['a"b', "x\ny = 1", "# [[rules]]", "it's", 'q"""', "tab\t\\", "\u2028\x85é日本", "L" * 500, "[x]", "\x1b[31m"]


@pytest.mark.parametrize(("name", "label"), [*zip(HOSTILE, HOSTILE[1:] + HOSTILE[:1], strict=True)])
def test_hostile_names_stay_inside_their_line(name, label):
    place = np.arange(900) % 3
    values = np.array([label, f"{label}2", f"{label}3"], dtype=object)[place].tolist()
    place[0] = 1  # or one would be a copy of the other, and tied to it
    table = people(900, **{name: values, f"{name}#": place.tolist()})
    text = infer_domain(table, sensitive=["sex"], target="hired").to_toml()
    end = text[text.index("\n##") :].splitlines()
    assert all(not line or line.startswith("#") for line in end)  # in all programs, whatever ends a line there
    assert parse_domain(text).rules == ()
    taken = parse_domain(uncommented(text))
    assert taken.rules == suggested(table)[1].rules
    assert taken.count == 2 * 3


def raw(name):
    files = sources.find_local_files(name)
    if files is None:
        pytest.skip(f"{name} is not at hand")
    return files


def test_adult_suggests_that_a_husband_is_male_and_married(tmp_path):
    columns = (
        "age,workclass,fnlwgt,education,education_num,marital,occupation,relationship,race,sex,gain,loss,hours,land"
    )
    (file,) = (path for path in raw("adult") if path.name == "adult.data.gz")
    table = tmp_path / "adult.csv"
    table.write_text(f"{columns},hired\n{gzip.decompress(file.read_bytes()).decode().strip()}\n")
    rules, domain = suggested(table)
    assert rules["relationship Husband: sex Male"].then == {"sex": ("Male",)}
    assert rules["education Masters: education_num 14"].then == {"education_num": (14,)}
    assert {"gain": Span(1), "loss": Span(1)} in [rule.when for rule in rules.values()]
    data = read_table(table, domain)
    broken = dict(zip(rules, domain.broken(data.rows).sum(0).tolist(), strict=True))
    assert broken["relationship Husband: sex Male"] == 1
    assert sum(broken.values()) <= 0.002 * len(data)


def test_compas_suggests_that_age_fixes_its_group():
    (file,) = raw("compas")[:1]
    columns = ["sex", "age", "age_cat", "race", "priors_count", "decile_score", "score_text"]
    draft = draft_domain(file, sensitive=["race"], target="two_year_recid", settings=InferenceSettings(columns))
    assert "## age fixes age_cat: 7,214 people, 0 exceptions" in draft.text
