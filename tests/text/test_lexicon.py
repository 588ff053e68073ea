import pytest

from neuronfair.errors import DataError
from neuronfair.text.lexicon import BUNDLED, examine, parse_lexicon, read_lexicon, replace_parts


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


# Texts that mention them


def swapped(text, lexicon, group):
    found = examine(text, read_lexicon(lexicon))
    if isinstance(found, str):
        return found
    return replace_parts(found.text, found.find_parts(read_lexicon(lexicon), read_lexicon(lexicon).groups.index(group)))


@pytest.mark.parametrize(
    ("text", "lexicon", "group", "expected"),
    [
        ("She saw her and took her bag; it was hers.", "gender", "male", "He saw him and took his bag; it was his."),
        ("he lost his way because of his", "gender", "female", "she lost her way because of hers"),
        ("His wife left him.", "gender", "female", "Her husband left her."),
        ("AN ACTRESS! She won.", "gender", "male", "AN ACTOR! He won."),
        ("He is a Muslim and prays.", "religion", "Jewish", "He is a Jew and prays."),
        ("She is Muslim.", "religion", "Jewish", "She is Jewish."),
        ("a muslim woman", "religion", "Hindu", "a hindu woman"),
        ("a Black man with black shoes", "ethnicity", "Asian", "an Asian man with black shoes"),
        ("a tale of a black man", "ethnicity", "Asian", "a tale of an asian man"),  # all in lower case
        ("A tale of a black man", "ethnicity", "Asian", "A tale of an Asian man"),
        ("an Italian film with Italian actors", "nationality", "French", "an Italian film with French actors"),
        ("a devout Muslim", "religion", "Jewish", "a devout Jew"),
        ("A Christian prays daily.", "religion", "Jewish", "A Jew prays daily."),
        ("As a Muslim I must fast.", "religion", "Jewish", "As a Jew I must fast."),
        ("a Muslim sports club", "religion", "Jewish", "a Jewish sports club"),
        ("a Muslim women's group", "religion", "Jewish", "a Jewish women's group"),
        ("Late. Latino voters left.", "ethnicity", "White", "Late. White voters left."),
        ("the Latino voters left", "ethnicity", "White", "the white voters left"),
        ("An openly gay mayor spoke.", "orientation", "straight", "An openly straight mayor spoke."),
        ("The Black customer was white with anger.", "ethnicity", "Asian", "The Asian customer was white with anger."),
        (
            "It hit him in his back, and the car was his.",
            "gender",
            "female",
            "It hit her in her back, and the car was hers.",
        ),
        ("an actress and a woman of talent", "gender", "male", "an actor and a man of talent"),
        ("He is an actor.", "gender", "female", "She is an actor."),
        ("&#8220;she told&nbsp;him a lie", "gender", "male", "&#8220;he told&nbsp;her a lie"),
        ("her own fault, in her opinion", "gender", "male", "his own fault, in his opinion"),
        ("Mary called.", "gender", "male", "James called."),
        ("We hired James because he was kind.", "gender", "female", "We hired Mary because she was kind."),
    ],
)
def test_swaps_keep_everything_else(text, lexicon, group, expected):
    assert swapped(text, lexicon, group) == expected


@pytest.mark.parametrize(
    ("text", "lexicon", "reason"),
    [
        ("It rained all day.", "gender", "no identity term"),
        ("white wine and black shoes", "ethnicity", "no identity term"),
        ("Muslims and Jews met", "religion", "several groups"),
        ("men and women", "gender", "contrasted or negated"),
        ("he or she may apply", "gender", "contrasted or negated"),
        ("this is not a man", "gender", "contrasted or negated"),
        ('they played "His song" twice', "gender", "quoted"),
        ("We adored the Lady", "gender", "part of a name"),
        ("I loved Lady Bird", "gender", "ambiguous"),
        ("a fan of Zigzag girls", "gender", "part of a name"),
        ("her friend Marcus called", "gender", "part of a name"),
        ("see samira play her own part", "gender", "part of a name"),
        ("@JamesOKeefe lost his way", "gender", "part of a name"),
        ("a strongman and his dog", "gender", "ambiguous"),
        ("they called her names", "gender", "ambiguous"),
        ("they gave her back the bag", "gender", "ambiguous"),
        ("Talk to her is a film", "gender", "ambiguous"),
        ("the actors waited", "gender", "no identity term"),
        ("it is your turn man", "gender", "part of a name"),
        ("let my girl wait", "gender", "part of a name"),
        ("a long and straight up lie, so I'm straight up rude", "orientation", "no identity term"),
        ("he is tone deaf", "disability", "ambiguous"),
        ("Robert De Niro plays his father", "gender", "part of a name"),
        ("james woods plays his part", "gender", "part of a name"),
        ("She is pregnant.", "gender", "ambiguous"),
        ("the church of the christian man", "religion", "ambiguous"),
    ],
)
def test_what_cannot_be_swapped_soundly_is_left_out_by_reason(text, lexicon, reason):
    assert swapped(text, lexicon, "x") == reason


def test_swapping_twice_gives_the_text_back_where_terms_are_paired():
    lexicon = read_lexicon("gender")
    for text in ("She told her brother.", "The king and his daughters left.", "a niece met an uncle"):
        one = examine(text, lexicon)
        there = replace_parts(text, one.find_parts(lexicon, 1 - one.group))
        other = examine(there, lexicon)
        assert replace_parts(there, other.find_parts(lexicon, 1 - other.group)) == text


def test_the_own_group_changes_nothing():
    lexicon = read_lexicon("religion")
    found = examine("Two Buddhists spoke.", lexicon)
    assert found.find_parts(lexicon, found.group) == []
    assert len(found.groups) == len(lexicon.groups)


@pytest.mark.parametrize("text", ["😀 she 😀", "هو قال she said", "<b>she</b> & he's", "she\u200b", "she " * 20_000])
def test_odd_texts_are_read(text):
    assert not isinstance(examine(text, read_lexicon("gender")), type(None))


@pytest.mark.parametrize(
    ("text", "twin"),
    [
        ("She's late because she'd overslept; she’ll call.", "He's late because he'd overslept; he’ll call."),
        ("I want her to come.", "I want him to come."),  # "want" ends like "n't", but negates nothing
        ("My ex-husband and his lawyer called.", "My ex-wife and her lawyer called."),
        ("Her mother-in-law visited.", "His father-in-law visited."),
        ("The ladies' room was full, so she left.", "The gentlemen's room was full, so he left."),
        ("The gentlemen’s room was full, so he left.", "The ladies’ room was full, so she left."),
        ("Pronouns in my bio: she/her", "Pronouns in my bio: he/him"),
        ("she/her pronouns in bio", "he/him pronouns in bio"),
        ("The hostess spilled her wine.", "The host spilled his wine."),
        ("My fiancee and her friends left.", "My fiance and his friends left."),
    ],
)
def test_only_the_identity_changes(text, twin):
    gender = read_lexicon("gender")
    found = examine(text, gender)
    assert not isinstance(found, str), found
    assert replace_parts(text, found.find_parts(gender, 1 - found.group)) == twin


@pytest.mark.parametrize(
    "text",
    [
        "Woman-owned business; she runs it.",  # the term in the compound would stay
        "s/he agreed with him",
        "A friend of his called.",  # of him, or of his: the word after it decides
        "Me and her went home.",
        "They hired her full-time.",
        "The king size bed broke and he complained.",
        "He mansplained it to us.",
        "Yes ma'am, she said.",
        "I gave it to her last week.",  # her last week, or last week
        "She is one of the good guys.",
    ],
)
def test_what_cannot_be_swapped_soundly_is_left_out(text):
    assert examine(text, read_lexicon("gender")) == "ambiguous"


def test_religions_in_compounds_are_not_left_behind():
    religion = read_lexicon("religion")
    assert examine("A Muslim man visited a Muslim-owned shop.", religion) == "ambiguous"
    assert not isinstance(examine("A Muslim man visited a well-known shop.", religion), str)
