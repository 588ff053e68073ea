import pytest

from neuronfair.errors import DataError
from neuronfair.text.lexicon import BUNDLED, parse_lexicon, read_lexicon


@pytest.mark.parametrize("name", BUNDLED)
def test_swapping_there_and_back_gives_a_term_of_the_first_group(name):
    lexicon = read_lexicon(name)
    for terms in lexicon.terms.values():
        for term in terms:
            for group in range(len(lexicon.groups)):
                there = lexicon.counterpart(term, group)
                if there and group != term.group and there not in lexicon.targets:
                    back = [t for t in lexicon.find(there) if t.group == group]
                    assert back, f"{there} is not a term of {lexicon.groups[group]}"
                    assert any(lexicon.counterpart(t, term.group) for t in back)


def test_whole_words_only():
    gender = read_lexicon("gender")
    found = [m[0] for m in gender.pattern.finditer("The manager's woman-like @she mankind; he's here, her's not. HE")]
    assert found == ["he", "her", "HE"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected a first line"),
        ("a,b,c\n", "expected a first line"),
        ("concept,use,one\nx,,y\n", "2 to 64 groups"),
        ("concept,use,one,one\nx,,y,z\n", "different names"),
        ("concept,use,one,two\nx,,y\n", "line 2: expected a concept"),
        ("concept,use,one,two\nx,sometimes,y,z\n", "line 2: expected a concept"),
        ("concept,use,one,two\nx,,same,same\n", "'same' names one and two"),
        ("concept,use,one,two\nx,,a,\ny,,a,\n", "'a' stands in line 2 already"),
        (f"concept,use,one,two\nx,,{'a' * 61},b\n", "more than 60 characters"),
        ("concept,use,one,two\n", "lines of terms"),
    ],
)
def test_a_wrong_lexicon_is_refused_with_its_line(content, message):
    with pytest.raises(DataError, match=message):
        parse_lexicon(content, "own.csv")


def test_a_term_in_brackets_replaces_others_and_is_not_found():
    lexicon = parse_lexicon("concept,use,female,male\njob,,actress,(actor)\n", "own.csv")
    assert lexicon.counterpart(lexicon.find("actress")[0], 1) == "actor"
    assert not lexicon.find("actor")


def test_an_unknown_lexicon_names_the_nearest():
    with pytest.raises(DataError, match="Did you mean 'gender'"):
        read_lexicon("gendr")


def test_a_lexicon_of_another_language(tmp_path):
    path = tmp_path / "geschlecht.csv"
    path.write_text("concept,use,weiblich,männlich\nsubjekt,,sie,er\nkind,,Tochter,Sohn\n", encoding="utf-8")
    german = read_lexicon(path)
    assert german.name == "geschlecht"
    assert german.counterpart(german.find("tochter")[0], 1) == "Sohn"
