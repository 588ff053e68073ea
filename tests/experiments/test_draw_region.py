"""The picture of a certified region shows the record, the values in the region and its size."""

from __future__ import annotations

import json
import re
import sys

from experiments import draw_region

ROW = {
    "rule": "age >= 30 and age <= 40 and job in [skilled]",
    "depends": False,
    "size": {"count": "1234567"},
    "rows": {"count": 89},
}


def test_the_picture_of_a_region(tmp_path, monkeypatch):
    source, target = tmp_path / "row.json", tmp_path / "region.svg"
    source.write_text(json.dumps({"data": "german", "sensitive": ["sex"], "row": ROW}))
    monkeypatch.setattr(sys, "argv", ["draw_region", str(source), "2", str(target)])
    draw_region.main()
    picture = target.read_text(encoding="utf-8")
    words = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    assert "Row 2 of german: no decision in this region depends on sex" in words
    assert "1,234,567 records of the input space, 89 of the data set" in words
    age = words[words.index("age") + 1]
    assert age.startswith("30 to 40, of ")
    assert words[words.index("job") + 1] == "skilled"
    assert picture.count('class="record"') == 1 + 20  # the legend, and one for each attribute
