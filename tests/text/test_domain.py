import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import neuronfair as nf
from neuronfair.domain.twins import GROUP, SAMPLE
from neuronfair.errors import DomainError
from neuronfair.text.domain import WORDS, Templates, TextDomain, read_templates
from neuronfair.text.lexicon import read_lexicon
from tests.text.cases import SENTENCES, made_domain

DOMAIN = made_domain()


def draws(n, seed):
    return torch.rand(n, DOMAIN.draws_per_row, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_the_rows_of_the_texts_are_the_texts():
    assert DOMAIN.write(DOMAIN.rows) == list(SENTENCES)


def test_a_twin_differs_in_identity_terms_only():
    assert DOMAIN.write(DOMAIN.twins(DOMAIN.rows).rows[:, 0])[:3] == [
        "He is a good teacher.",
        "She said the film was funny.",
        "The actor was brilliant in a sad story.",
    ]


@given(st.integers(0, 10_000))
def test_every_drawn_and_every_clipped_row_is_valid(seed):
    rows = DOMAIN.rows_at(draws(20, seed))
    assert DOMAIN.valid(rows).all()
    wild = torch.randint(-3, 30, rows.shape, generator=torch.Generator().manual_seed(seed))
    assert DOMAIN.valid(DOMAIN.clip(wild)).all()
    assert torch.equal(DOMAIN.clip(rows), rows)


@given(st.integers(0, 10_000))
def test_twins_are_mutual_and_share_a_key(seed):
    rows = DOMAIN.rows_at(draws(20, seed))
    twins = DOMAIN.twins(rows).rows[:, 0]
    assert torch.equal(DOMAIN.twins(twins).rows[:, 0], rows)
    assert torch.equal(DOMAIN.key(rows), DOMAIN.key(twins))
    assert torch.equal(DOMAIN.member(rows, torch.ones(20, dtype=torch.int64)), twins)
    assert (rows[:, WORDS:] == twins[:, WORDS:]).all()


def test_keys_tell_all_rows_apart_but_twins():
    text = 1
    counts = DOMAIN.choices[text].tolist()
    rows = torch.tensor([[text, 0, *words] for words in itertools.product(*map(range, counts))])
    assert len(set(DOMAIN.key(rows).tolist())) == len(rows) == len(set(DOMAIN.write(rows)))


@given(st.integers(0, 10_000))
def test_moves_keep_text_and_group(seed):
    rows = DOMAIN.rows_at(draws(20, seed))
    moved = DOMAIN.move(rows, DOMAIN.neighbours(rows, draws(20, seed + 1)))
    assert torch.equal(moved[:, [SAMPLE, GROUP]], rows[:, [SAMPLE, GROUP]])
    can = DOMAIN.choices[rows[:, SAMPLE]] > 1
    assert ((moved[:, WORDS:] != rows[:, WORDS:]) == can).all()


def test_articles_follow_replaced_words():
    domain = made_domain(["He saw a strange dog and an odd film."])
    texts = {text for row in itertools.product(*map(range, domain.choices[0].tolist()))
             for text in domain.write(torch.tensor([[0, 1, *row]]))}  # fmt: skip
    assert any("an odd dog" in text for text in texts)
    assert not any("a odd" in text or "an strange" in text or "an peculiar" in text for text in texts)


def test_a_group_without_a_counterpart_has_no_valid_twin():
    domain = made_domain(["a christian film with a believer", "two Jews met"], "religion")
    assert domain.swappable.all()
    with pytest.raises(DomainError, match="no text mentions"):
        TextDomain("none", (), read_lexicon("gender"))


# Templates

FILE = """
templates = ["{name} is a {how} {who} person.", "Being {who} is {how}."]
sensitive = ["who"]
[slots]
name = ["Alex", "Kim"]
how = ["kind", "angry", "awful"]
who = ["Muslim", "Christian", "Asian"]
"""


@pytest.fixture
def templates(tmp_path):
    path = tmp_path / "people.toml"
    path.write_text(FILE)
    return read_templates(path)


def test_every_sentence_stands_once_with_the_right_article(templates):
    data = templates.dataset()
    frame = {a.name: [a.value(int(c)) for c in data.rows[:, i]] for i, a in enumerate(data.domain.attributes)}
    sentences = templates.render(frame)
    assert len(sentences) == len(set(sentences)) == 2 * 3 * 3 + 3 * 3
    assert "Alex is an angry Muslim person." in sentences
    assert "Being Asian is kind." in sentences


def test_the_audit_gives_the_exact_flip_rate(templates):
    def model(texts):
        return [0.9 if "Muslim" in text and "kind" not in text else 0.1 for text in texts]

    settings = nf.AuditSettings.quick(twins="flip", seeds=5, steps=5)
    audit = nf.audit(templates.model(model), templates.dataset(), settings=settings, progress=False)
    rate = audit.report.attributes[0].rates.table
    assert rate.rate == pytest.approx(2 / 3)  # all but those with "kind"


AGREEING = """
templates = [
  "The {who} in the {place} {who:is|are} {how}.",
  "{who:An|Some} {who} {who:was|were} late with {whose} bag.",
]
sensitive = ["who"]
plural = ["women"]
[slots]
who = ["woman", "women", "engineer"]
place = ["park", "office"]
how = ["kind", "old"]
whose = ["their", "the"]
[[rules]]
name = "no engineer in the park"
forbid = { who = "engineer", place = "park" }
[[rules]]
name = "women are kind"
if = { who = "women" }
then = { how = "kind" }
"""


def sentences_of(templates):
    data = templates.dataset()
    frame = {a.name: [a.value(int(c)) for c in data.rows[:, i]] for i, a in enumerate(data.domain.attributes)}
    return templates.render(frame)


def test_a_sensitive_slot_that_a_template_does_not_use_has_one_word_there():
    slots = {"a": ("Ann", "Bob"), "b": ("Eve", "Tom", "Kim")}
    templates = Templates("t", ("{a} met {b}.", "{a} left."), slots, ("a", "b"))
    assert len(sentences_of(templates)) == len(set(sentences_of(templates))) == 2 * 3 + 2
    data = templates.dataset()
    assert data.domain.twins(data.rows).valid.sum(1).tolist() == [5] * 6 + [1] * 2


def test_verbs_agree_and_rules_leave_out_combinations(tmp_path):
    path = tmp_path / "t.toml"
    path.write_text(AGREEING)
    assert sorted(sentences_of(read_templates(path))) == sorted([
        "The woman in the park is kind.", "The woman in the park is old.",
        "The woman in the office is kind.", "The woman in the office is old.",
        "The women in the park are kind.", "The women in the office are kind.",
        "The engineer in the office is kind.", "The engineer in the office is old.",
        "A woman was late with their bag.", "A woman was late with the bag.",
        "Some women were late with their bag.", "Some women were late with the bag.",
        "An engineer was late with their bag.", "An engineer was late with the bag.",
    ])  # fmt: skip


def test_what_a_rule_forbids_is_no_twin(tmp_path):
    path = tmp_path / "t.toml"
    path.write_text(AGREEING)
    templates = read_templates(path)
    data, known = templates.dataset(), set(sentences_of(templates))
    twins, valid = data.domain.twins(data.rows)
    names = [a.name for a in data.domain.attributes]
    for row, other, exists in zip(
        data.rows.repeat_interleave(valid.shape[1], 0), twins.flatten(0, 1), valid.flatten(), strict=True
    ):
        words = {a.name: a.value(int(c)) for a, c in zip(data.domain.attributes, other.tolist(), strict=True)}
        sentence = templates.sentence(int(words["template"]), words)
        is_allowed = not (words["template"] == "0" and (
            (words["who"], words["place"]) == ("engineer", "park") or (words["who"], words["how"]) == ("women", "old")
        ))  # fmt: skip
        assert bool(exists) == is_allowed
        assert (sentence in known) == is_allowed
        assert (row[names.index("place")] == other[names.index("place")]).all()


CSV = """kind,slot,text
template,,"{who} {is|are} {how}, {name}."
template,,"Here {is|are} {name} with the {who}."
sensitive,who,
word,who,nurse
plural,who,nurses
word,how,kind
word,how,angry
word,name,Kim
word,name,Ann
forbid,,who == nurses and how == angry
forbid,,name in [Ann] and how == kind
"""


def test_templates_as_csv_are_those_of_toml(tmp_path):
    csv_path, toml_path = tmp_path / "t.csv", tmp_path / "t.toml"
    csv_path.write_text(CSV)
    toml_path.write_text("""
templates = ["{who} {is|are} {how}, {name}.", "Here {is|are} {name} with the {who}."]
sensitive = ["who"]
plural = ["nurses"]
rules = [{ forbid = { who = "nurses", how = "angry" } }, { forbid = { name = "Ann", how = "kind" } }]
[slots]
who = ["nurse", "nurses"]
how = ["kind", "angry"]
name = ["Kim", "Ann"]
""")
    sentences = sentences_of(read_templates(csv_path))
    assert sentences == sentences_of(read_templates(toml_path))
    assert sentences == [
        "Nurse is kind, Kim.", "Nurse is angry, Kim.", "Nurse is angry, Ann.", "Nurses are kind, Kim.",
        "Here is Kim with the nurse.", "Here is Ann with the nurse.",
        "Here is Kim with the nurses.", "Here is Ann with the nurses.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("slot,text\n", "expected a first line kind,slot,text"),
        (CSV.replace("word,how,kind", "adjective,how,kind"), "line 7: expected one of template, sensitive"),
        (CSV.replace("sensitive,who,", "sensitive,,"), "line 4: expected one of"),
        (CSV.replace("plural,who,nurses", "word,who,nurses"), "no word is listed as plural"),
        (CSV.replace("how == angry", "how == sad"), "sad"),
        (CSV.replace("how == angry", "who == nurse"), "names a slot twice"),
        (CSV.replace("{is|are} {how}", "{whom:is|are} {how}"), "slot 'whom'.*Did you mean 'who'"),
        (b"\xff\xfe", "cannot be read as CSV"),
    ],
)
def test_wrong_csv_files_are_refused(tmp_path, content, message):
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DomainError, match=message):
        read_templates(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (AGREEING.replace('plural = ["women"]', 'plural = ["men"]'), "the plural 'men' is a word of no slot"),
        (AGREEING.replace('who = "engineer"', 'who = "boy"'), "boy"),
        (FILE.replace("name = [", "template = [").replace("{name}", "{template}"), "cannot be called 'template'"),
        ("templates = 3", "expected \\[slots\\]"),
        ("x = 1", "unknown key 'x'"),
        (FILE.replace('"who"]', '"whom"]'), "sensitive slot 'whom'"),
        (FILE.replace("{how} {who}", "{now} {who}"), "slot 'now'"),
        (FILE.replace("Being {who} is {how}.", "Being {name}."), "has no sensitive slot"),
        (FILE.replace('"Kim"', '"Alex"'), "different words"),
        (FILE.replace('["Alex", "Kim"]', "[]"), "slots.name: expected a list"),
        ("\x00", "cannot be read as TOML"),
    ],
)
def test_wrong_files_are_refused(tmp_path, content, message):
    path = tmp_path / "t.toml"
    path.write_text(content)
    with pytest.raises(DomainError, match=message):
        read_templates(path)


def test_a_sentence_begins_with_a_capital():
    templates = Templates("t", ("{who} people came. {who} people left.",), {"who": ("old", "young")}, ("who",))
    assert templates.sentence(0, {"who": "old"}) == "Old people came. Old people left."
