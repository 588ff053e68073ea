from __future__ import annotations

import json

import pytest

from neuronfair.errors import DataError
from neuronfair.images.report import PictureReport
from tests.images.reports import REPAIRED, REPORT


@pytest.mark.parametrize("report", [REPORT, REPAIRED])
def test_a_report_is_read_back_as_it_was(report):
    assert PictureReport.from_json(report.to_json()) == report


def test_entries_of_the_file():
    entries = json.loads(REPAIRED.to_json())
    assert entries["methods"]["halving, random shift"]["share_of_faces"] == 0.25
    assert entries["shift"]["attribute_never_flips"] == 1
    assert entries["improvement"]["after"]["used"] == 7
    assert json.loads(REPORT.to_json())["improvement"] is None


@pytest.mark.parametrize("text", ["{}", "[", '{"schema": 3, "pictures": "many"}'])
def test_what_is_damaged_is_refused(text):
    with pytest.raises(DataError, match=r"x: not a figures\.json that can be read"):
        PictureReport.from_json(text, "x")
