import pytest

import neuronfair as nf
from neuronfair.errors import DomainError
from neuronfair.text.templates import Templates, read_templates

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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("templates = 3", "expected \\[slots\\]"),
        ("x = 1", "unknown key 'x'"),
        (FILE.replace('"who"]', '"whom"]'), "sensitive slot 'whom'"),
        (FILE.replace("{how} {who}", "{now} {who}"), "slot 'now'"),
        (FILE.replace("Being {who} is {how}.", "Being {name}."), "has no sensitive slot"),
        (FILE.replace('"Kim"', '"Alex"'), "different words"),
        (FILE.replace('["Alex", "Kim"]', "[]"), "slots.name: expected a list"),
        ("\x00", "not TOML"),
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
