"""From the raw files to tables of words and numbers, one small function per data set and encoding.

A recipe takes the text of the raw files and returns columns by name, the target column among them. The `default`
recipes keep what a person would write on a form; the `paper` recipes repeat the published preparation, so that the
codes of their domain are exactly the numbers that the published models eat.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

Columns = Mapping[str, Sequence[str | int]]

_ADULT = (
    "age workclass fnlwgt education education_num marital_status occupation relationship race sex "
    "capital_gain capital_loss hours_per_week native_country income"
)


def _columns(names: Sequence[str], rows: Iterable[Sequence[str]]) -> dict[str, list[str]]:
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def _floor(column: Sequence[str], divisor: int, low: int | None = None, high: int | None = None) -> list[int]:
    """Return the numbers of a column in steps of `divisor`, held between `low` and `high`."""
    numbers = [int(cell) // divisor for cell in column]
    if low is not None and high is not None:
        return [min(max(number, low), high) for number in numbers]
    return numbers


def _adult(*texts: str) -> dict[str, list[str]]:
    lines = (line for text in texts for line in text.splitlines())
    # The test file opens with a line of its own and ends its labels in a full stop.
    return _columns(
        _ADULT.split(), [line.rstrip(".").split(", ") for line in lines if line and not line.startswith("|")]
    )


def adult_default(train: str, test: str) -> Columns:
    """Return all 48,842 people of Adult, without the weight of the census and the number that repeats `education`.

    `fnlwgt` says how many people a record stands for, which is no fact about the person; `education_num` is the rank
    of `education`.
    """
    table = _adult(train, test)
    return {name: column for name, column in table.items() if name not in ("fnlwgt", "education_num")}


def adult_paper(train: str, test: str) -> Columns:
    """Return the 32,561 training rows of Adult with the published coarser numbers."""
    table = _adult(train)
    del table["education_num"]
    coarse = {"age": 10, "fnlwgt": 20_000, "capital_gain": 1_000, "capital_loss": 100}
    return {name: _floor(c, coarse[name]) if name in coarse else c for name, c in table.items()}


_GERMAN = (
    "checking_status duration credit_history purpose credit_amount savings_status employment installment_commitment "
    "sex other_parties residence property_magnitude age other_payment_plans housing existing_credits job "
    "num_dependents own_telephone foreign_worker credit"
)

# The words of the UCI documentation, shortened. Of A91 to A95 only the sex is kept: three kinds of men but a single
# kind of women are recorded, so the marital part would tell the sex again and no twin could exist.
_GERMAN_WORDS = {
    "A11": "below 0 DM", "A12": "0 to 200 DM", "A13": "200 DM or more", "A14": "no checking account",
    "A30": "no credits or all paid back", "A31": "all credits here paid back", "A32": "existing credits paid so far",
    "A33": "delays in the past", "A34": "critical account",
    "A40": "new car", "A41": "used car", "A42": "furniture", "A43": "radio or television",
    "A44": "domestic appliances", "A45": "repairs", "A46": "education", "A47": "vacation", "A48": "retraining",
    "A49": "business", "A410": "other",
    "A61": "below 100 DM", "A62": "100 to 500 DM", "A63": "500 to 1000 DM", "A64": "1000 DM or more",
    "A65": "unknown or none",
    "A71": "unemployed", "A72": "under 1 year", "A73": "1 to 4 years", "A74": "4 to 7 years", "A75": "7 years or more",
    "A91": "male", "A92": "female", "A93": "male", "A94": "male", "A95": "female",
    "A101": "none", "A102": "co-applicant", "A103": "guarantor",
    "A121": "real estate", "A122": "building society savings or life insurance", "A123": "car or other",
    "A124": "unknown or none",
    "A141": "bank", "A142": "stores", "A143": "none",
    "A151": "rent", "A152": "own", "A153": "for free",
    "A171": "unemployed or unskilled non-resident", "A172": "unskilled resident", "A173": "skilled",
    "A174": "management or highly qualified",
    "A191": "no", "A192": "yes", "A201": "yes", "A202": "no",
}  # fmt: skip

# Which of the 1,000 rows the published sample holds, in its order: all 300 bad ones and 300 of the good.
_GERMAN_SAMPLE = """
414 17 355 349 853 813 402 381 44 887 27 610 122 128 277 328 548 656 88 646 789 969 167 239 127 713 335
312 740 927 365 693 706 885 947 435 585 421 230 923 77 472 576 351 899 930 604 446 485 380 358 517 823
213 793 617 998 818 512 316 290 597 900 107 448 686 429 754 503 678 613 504 849 573 58 242 627 834 439
966 752 807 788 821 820 751 474 21 913 341 736 262 458 405 936 661 593 203 301 354 199 804 205 506 622
326 372 359 129 756 780 475 228 454 323 994 92 108 80 601 246 992 812 929 580 647 940 797 106 248 135
669 131 761 674 946 876 861 790 645 757 993 344 862 767 782 995 48 119 176 38 521 872 229 536 711 49 194
227 640 8 630 31 397 731 67 244 25 90 842 490 744 75 958 644 777 325 338 869 515 746 368 125 182 422 774
850 499 836 957 337 52 175 320 500 612 655 482 826 62 951 285 192 906 518 983 398 589 552 479 375 207
544 412 545 4 286 848 3 261 72 178 440 296 120 638 34 278 462 478 291 495 174 313 626 288 45 755 496 357
584 648 986 460 737 432 76 840 334 260 431 739 722 559 578 720 598 374 491 362 649 954 590 822 265 835
707 745 743 931 209 117 43 155 219 295 419 866 104 641 805 653 831 516 505 531 273 897 581 809 378 878
322 237 216 561 728 465 23 884 59 113 188 118 750 985 892 383 166 501 170 180 274 235 689 718 184 315
924 222 470 83 522 54 333 890 535 796 981 771 18 137 979 614 9 775 540 84 308 871 268 875 770 304 226
856 66 926 762 917 543 934 618 664 925 603 444 602 763 922 538 179 539 238 393 282 140 941 978 769 596
251 997 933 195 528 972 217 488 452 696 557 988 47 759 905 729 146 631 996 416 935 619 980 257 624 650
502 142 741 163 982 867 221 449 407 396 169 353 252 339 346 367 874 681 699 93 570 314 832 201 632 109
677 555 424 484 15 152 302 74 293 697 94 123 471 486 186 651 477 952 29 151 944 721 392 605 642 413 156
911 240 560 114 220 607 635 583 864 915 417 126 124 332 259 208 553 172 330 838 89 623 825 783 139 858
409 563 973 177 307 660 297 918 250 218 542 621 828 319 463 105 181 356 204 14 956 714 143 434 975 594
24 364 702 949 690 569 289 566 611 480 507 157 765 948 303 147 361 281 588 232 727 41 461 457 529 190
331 35 701 236 438 963 634 595 494 68 668 1 639 148 466 116 652 724 13 532 827 87 846 953 441 747 919
556 171 111 249 0 91 197 802 12 321 95 271 456 22 700 191 558 63 955 819 56 768 510 586 11 916 562 914
513 10 587 391 264 336 206 803 37 938 896 292 212 443 766 633 814
"""


def _german(text: str) -> dict[str, list[str]]:
    table = _columns(_GERMAN.split(), [line.split() for line in text.splitlines()])
    credit = {"1": "good", "2": "bad"}
    words = {name: [_GERMAN_WORDS.get(cell, cell) for cell in column] for name, column in table.items()}
    return words | {"credit": [credit[cell] for cell in table["credit"]]}


def german_default(text: str) -> Columns:
    """Return the 1,000 applicants of German credit in words."""
    return _german(text)


def german_paper(text: str) -> Columns:
    """Return the published balanced sample of 600 applicants with its coarser numbers."""
    chosen = [int(index) for index in _GERMAN_SAMPLE.split()]
    sample = {name: [column[i] for i in chosen] for name, column in _german(text).items()}
    coarse = {"credit_amount": 100, "age": 10}
    return {name: _floor(c, coarse[name]) if name in coarse else c for name, c in sample.items()}


def _bank(text: str) -> dict[str, list[str]]:
    header, *rows = csv.reader(text.splitlines(), delimiter=";")
    return _columns(header, rows)


def bank_default(text: str) -> Columns:
    """Return the 45,211 clients of Bank marketing as recorded.

    `duration`, the length of the call, is known only after the call; it is kept because the paper's models use it.
    """
    return _bank(text)


def bank_paper(text: str) -> Columns:
    """Return Bank marketing with the published coarser numbers; `pdays` is 1 where nobody had called before."""
    table = _bank(text)
    return table | {
        "age": _floor(table["age"], 10, 1, 9),
        "balance": _floor(table["balance"], 50, -20, 179),
        "duration": _floor(table["duration"], 10, 0, 99),
        "pdays": [int(cell == "-1") for cell in table["pdays"]],
        "previous": _floor(table["previous"], 1, 0, 1),
    }


_COMPAS = (
    "sex age race juv_fel_count juv_misd_count juv_other_count priors_count "
    "age_cat c_charge_degree c_charge_desc two_year_recid"
)
_RARE_CHARGE = 20


def _compas(text: str) -> dict[str, list[str]]:
    """Return the rows and columns of COMPAS that AIF360 keeps."""
    names = _COMPAS.split()
    header, *rows = csv.reader(text.splitlines())
    # Some names stand twice in the published header; the first one is meant.
    place = {name: header.index(name) for name in header}

    def kept(row: Sequence[str]) -> bool:
        days = row[place["days_b_screening_arrest"]]
        return (
            days != ""
            and abs(float(days)) <= 30
            and row[place["is_recid"]] != "-1"
            and row[place["c_charge_degree"]] != "O"
            and row[place["score_text"]] != "N/A"
            and all(row[place[name]] != "" for name in names)
        )

    return _columns(names, [[row[place[name]] for name in names] for row in rows if kept(row)])


def compas_default(text: str) -> Columns:
    """Return the 6,167 defendants of COMPAS in words.

    `age_cat` repeats `age` and is left out. Charges are compared in lower case (some are spelt in two ways), and those
    with fewer than 20 defendants are called "other".
    """
    table = _compas(text)
    del table["age_cat"]
    charges = [charge.lower() for charge in table["c_charge_desc"]]
    often = Counter(charges)
    degree = {"F": "felony", "M": "misdemeanor"}
    return table | {
        "c_charge_degree": [degree[cell] for cell in table["c_charge_degree"]],
        "c_charge_desc": [charge if often[charge] >= _RARE_CHARGE else "other" for charge in charges],
        "two_year_recid": _yes_no(table["two_year_recid"]),
    }


def compas_paper(text: str) -> Columns:
    """Return COMPAS as AIF360 encodes it: 7 numbers and 394 flags, which know nothing of each other."""
    table = _compas(text)
    columns: dict[str, Sequence[str | int]] = {name: table[name] for name in list(table)[:7]}
    columns["race"] = ["Caucasian" if cell == "Caucasian" else "not Caucasian" for cell in table["race"]]
    for name in ("age_cat", "c_charge_degree", "c_charge_desc"):
        columns |= _flags(name, table[name], sorted(set(table[name])))
    return columns | {"two_year_recid": _yes_no(table["two_year_recid"])}


def _yes_no(column: Sequence[str]) -> list[str]:
    return [{"0": "no", "1": "yes"}[cell] for cell in column]


def _flags(name: str, column: Sequence[str], values: Sequence[str]) -> dict[str, list[int]]:
    return {f"{name}={value}": [int(cell == value) for cell in column] for value in values}


_ASKED = {"-1": "inapplicable", "1": "yes", "2": "no"}
_RATED = {"-1": "inapplicable", "1": "excellent", "2": "very good", "3": "good", "4": "fair", "5": "poor"}

# MEPS name: (our name, code-book value of the source's codes 0, 1, …, words for the code-book values). The source
# numbers its categories by first appearance; an empty second entry means that it holds the value itself.
_MEPS: dict[str, tuple[str, str, dict[str, str]]] = {
    "REGION": ("region", "1 3 4 2", {"1": "Northeast", "2": "Midwest", "3": "South", "4": "West"}),
    "AGE": ("age", "", {}),
    "SEX": ("sex", "2 1", {"1": "male", "2": "female"}),
    "RACE": ("race", "", {"0": "other", "1": "non-Hispanic White"}),
    "MARRY": ("marital_status", "1 5 6 3 4 2 9 7 10 8", {
        "1": "married", "2": "widowed", "3": "divorced", "4": "separated", "5": "never married", "6": "under 16",
        "7": "married in this round", "8": "widowed in this round", "9": "divorced in this round",
        "10": "separated in this round"}),
    "FTSTU": ("student", "-1 1 3 2", {"-1": "inapplicable", "1": "full-time", "2": "part-time", "3": "no"}),
    "ACTDTY": ("active_duty", "2 3 4 1", {"1": "yes", "2": "no", "3": "under 16", "4": "over 59"}),
    "HONRDC": ("honorable_discharge", "2 3 1 4", {"1": "yes", "2": "no", "3": "under 17", "4": "now on active duty"}),
    "RTHLTH": ("health", "1 4 3 2 5 -1", _RATED),
    "MNHLTH": ("mental_health", "1 3 5 2 4 -1", _RATED),
    "CHDDX": ("coronary_heart_disease", "2 -1 1", _ASKED),
    "ANGIDX": ("angina", "2 -1 1", _ASKED),
    "MIDX": ("heart_attack", "2 -1 1", _ASKED),
    "OHRTDX": ("other_heart_disease", "2 -1 1", _ASKED),
    "STRKDX": ("stroke", "2 -1 1", _ASKED),
    "EMPHDX": ("emphysema", "2 -1 1", _ASKED),
    "CHBRON": ("chronic_bronchitis", "2 -1 1", _ASKED),
    "CHOLDX": ("high_cholesterol", "2 -1 1", _ASKED),
    "CANCERDX": ("cancer", "1 2 -1", _ASKED),
    "DIABDX": ("diabetes", "2 -1 1", _ASKED),
    "JTPAIN": ("joint_pain", "2 -1 1", _ASKED),
    "ARTHDX": ("arthritis", "2 -1 1", _ASKED),
    "ARTHTYPE": ("arthritis_type", "-1 1 3 2", {
        "-1": "inapplicable", "1": "rheumatoid", "2": "osteoarthritis", "3": "not specified"}),
    "ASTHDX": ("asthma", "2 1", _ASKED),
    "ADHDADDX": ("adhd", "-1 2 1", _ASKED),
    "PREGNT": ("pregnant", "2 -1 1", _ASKED),
    "WLKLIM": ("walking_limitation", "2 1 -1", _ASKED),
    "ACTLIM": ("activity_limitation", "2 1 -1", _ASKED),
    "SOCLIM": ("social_limitation", "2 1 -1", _ASKED),
    "COGLIM": ("cognitive_limitation", "2 -1 1", _ASKED),
    "DFHEAR42": ("hearing_difficulty", "2 1 -1", _ASKED),
    "DFSEE42": ("seeing_difficulty", "2 1 -1", _ASKED),
    "ADSMOK42": ("smoker", "2 -1 1", _ASKED),
    "PCS42": ("physical_score", "", {}),
    "MCS42": ("mental_score", "", {}),
    "K6SUM42": ("distress_score", "", {}),
    "PHQ242": ("depression_score", "0 -1 2 5 1 6 4 3", {"-1": "inapplicable"}),
    "EMPST": ("employment", "1 -1 4 3 2", {
        "-1": "inapplicable", "1": "employed", "2": "job to return to", "3": "had a job in this round",
        "4": "not employed"}),
    "POVCAT": ("income", "5 1 4 2 3", {
        "1": "poor", "2": "near poor", "3": "low income", "4": "middle income", "5": "high income"}),
    "INSCOV": ("insurance", "1 2 3", {"1": "private", "2": "public only", "3": "none"}),
}  # fmt: skip


def _meps(text: str) -> dict[str, list[str]]:
    """Return the table of MEPS in code-book values."""
    table = _columns([*_MEPS, "UTILIZATION"], list(csv.reader(text.splitlines()))[1:])
    for name, (_, values, _words) in _MEPS.items():
        if values:
            decode = values.split()
            table[name] = [decode[int(cell)] for cell in table[name]]
    return table


def _visits(column: Sequence[str]) -> list[str]:
    return [{"0": "under 10 visits", "1": "10 visits or more"}[cell] for cell in column]


def meps_default(text: str) -> Columns:
    """Return the 15,675 people of MEPS panel 21 in the words of its code book."""
    table = _meps(text)
    columns = {ours: [words.get(v, v) for v in table[name]] for name, (ours, _, words) in _MEPS.items()}
    return columns | {"utilization": _visits(table["UTILIZATION"])}


def meps_paper(text: str) -> Columns:
    """Return MEPS as AIF360 encodes it: 5 numbers, then flags, less `SEX=2`, which the paper takes out.

    The source has no HIBPDX, so these are 134 columns where the published model eats 137.
    """
    table = _meps(text)
    numbers = ("AGE", "RACE", "PCS42", "MCS42", "K6SUM42")
    columns: dict[str, Sequence[str | int]] = {name: table[name] for name in numbers}
    for name in _MEPS:
        if name not in numbers:
            columns |= _flags(name, table[name], sorted(set(table[name]), key=int))
    del columns["SEX=2"]
    return columns | {"UTILIZATION": _visits(table["UTILIZATION"])}


RECIPES: dict[tuple[str, str], Callable[..., Columns]] = {
    ("adult", "default"): adult_default,
    ("adult", "paper"): adult_paper,
    ("german", "default"): german_default,
    ("german", "paper"): german_paper,
    ("bank", "default"): bank_default,
    ("bank", "paper"): bank_paper,
    ("compas", "default"): compas_default,
    ("compas", "paper"): compas_paper,
    ("meps", "default"): meps_default,
    ("meps", "paper"): meps_paper,
}
