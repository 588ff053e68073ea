import pytest

from neuronfair.text.english import in_case_of, is_used_as, takes_an, with_article


@pytest.mark.parametrize(
    ("use", "before", "after", "expected"),
    [
        ("possessive her", "he likes ", " dog", True),
        ("possessive her", "he likes ", " in the park", False),
        ("object her", "he likes ", ".", True),
        ("object her", "he told ", " that it rained", True),
        ("object her", "he told ", " story", False),
        ("object him", "he told ", " stories", True),
        ("pronoun his", "the car is ", "", True),
        ("pronoun his", "out of ", " back, and", False),
        ("possessive his", "out of ", " back, and", True),
        ("noun", "he is a ", ".", True),
        ("noun", "he is a devout ", ".", True),
        ("noun", "he is ", ".", False),
        ("adjective", "he is ", ".", True),
        ("adjective", "he is a neat ", ".", False),
        ("adjective", "a ", " man", True),
        ("person", "a ", " man", True),
        ("person", "a ", " wine", False),
        ("person", "she is ", ".", True),
        ("person", "she is also ", ".", True),
        ("person", "the film is ", " from the cartoons", False),
        ("person", "a ten year ", " girl", False),
    ],
)
def test_the_use_of_a_term_is_told_by_the_words_around_it(use, before, after, expected):
    assert is_used_as(*f"{use} ".split(" ")[:2], before, after) is expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [("apple", True), ("hour", True), ("user", False), ("one", False), ("MBA", True), ("uncle", True), ("unit", False)],
)
def test_articles_follow_the_sound(word, expected):
    assert takes_an(word) is expected


def test_only_an_article_is_changed():
    assert with_article("plan a ", "idea") == "plan an "
    assert with_article("vitamin A, ", "Asian") == "vitamin A, "
    assert with_article("banana ", "Asian") == "banana "
    assert with_article("A ", "old") == "An "


def test_case_is_kept():
    assert in_case_of("HE", "he", "she") == "SHE"
    assert in_case_of("Muslim", "Muslim", "Christian") == "Christian"
    assert in_case_of("He", "he", "she") == "She"
