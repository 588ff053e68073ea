"""The picture of docs/explanation/proof.md: one record of a data set and the region that is certified around it.

neuronfair train adult --out adult.safetensors
neuronfair certify adult --model adult.safetensors --sensitive sex --seconds 20 --out proof --row 1 --json row.json
python -m experiments.draw_region row.json 1 docs/img/region.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.schema.toml import allowed_codes
from neuronfair.domain.tables.dataset import load_dataset

import torch
from torch import Tensor

LEFT, TRACK, ROW, TOP, WIDTH = 150, 300, 28, 72, 720  # pixels
FEW = 3  # values that are named one by one
STYLE = (
    "text { font: 13px 'DejaVu Sans', Verdana, sans-serif; fill: #1c232d } .soft { fill: #59626f; font-size: 12px }"
    " .title { font-size: 15px; font-weight: bold } .outside { fill: #dcd9d0 } .inside { fill: #0b5f8a }"
    " .record { fill: #ffb000; stroke: #1c232d; stroke-width: 1.5 }"
)


def main() -> None:
    source, number, target = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    report = json.loads(source.read_text(encoding="utf-8"))
    data = load_dataset(report["data"], sensitive=report["sensitive"])
    allowed = allowed_codes(data.domain, report["row"]["rule"])
    lines = list(drawing(report, data.domain.attributes, allowed, data.rows[number - 1], number))
    height = TOP + ROW * len(data.domain.attributes) + 12
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<style>{STYLE}</style>'
    frame = f'<rect width="{WIDTH}" height="{height}" fill="#f9f8f5"/>'
    target.write_text("\n".join((head, frame, *lines, "</svg>\n")), encoding="utf-8")


def drawing(
    report: dict[str, Any], attributes: tuple[Attribute, ...], allowed: tuple[Tensor, ...], record: Tensor, number: int
) -> Iterator[str]:
    """Yield the title, the legend and a line for each attribute."""
    region, sensitive = report["row"], report["sensitive"]
    depends = "every" if region["depends"] else "no"
    title = f"Row {number} of {report['data']}: {depends} decision in this region depends on {', '.join(sensitive)}"
    yield text(16, 30, title, "title")
    counts = f"{int(region['size']['count']):,} records of the input space, {region['rows']['count']} of the data set"
    yield text(16, 54, counts, "soft")
    for x, mark, label in ((440, "inside", "in the region"), (555, "outside", "outside"), (640, "record", "this row")):
        yield circle(x, 50, mark) if mark == "record" else block(x - 6, x + 6, 50, mark)
        yield text(x + 12, 54, label, "soft")
    for place, (attribute, codes) in enumerate(zip(attributes, allowed, strict=True)):
        middle = TOP + ROW * place + ROW // 2
        code = int(record[place])
        yield text(16, middle + 5, attribute.name)
        yield from track(attribute.size, codes, middle, numbers=not attribute.values)
        yield circle(LEFT + TRACK * (code + 0.5) / attribute.size, middle, "record")
        said = "all compared" if attribute.name in sensitive else described(attribute, codes)
        yield text(LEFT + TRACK + 20, middle + 5, said, "soft")


def track(size: int, codes: Tensor, middle: int, *, numbers: bool) -> Iterator[str]:
    """Yield a bar of all values of an attribute, those of the region in colour; labels have a block each."""
    if numbers:
        first, last = int(codes.nonzero()[0]), int(codes.nonzero()[-1])
        begin, end = (LEFT + TRACK * code / size for code in (first, last + 1))
        yield block(LEFT, LEFT + TRACK, middle, "outside")
        yield block(begin, max(end, begin + 3), middle, "inside")
        return
    step = TRACK / size
    for code, inside in enumerate(codes.tolist()):
        gap = 1 if size > 1 else 0
        yield block(LEFT + step * code, LEFT + step * (code + 1) - gap, middle, "inside" if inside else "outside")


def described(attribute: Attribute, codes: Tensor) -> str:
    """Return which values are in the region, in words."""
    if not attribute.values:
        places = (int(codes.nonzero()[0]), int(codes.nonzero()[-1]), 0, attribute.size - 1)
        low, high, lowest, highest = (f"{attribute.value(code):,.0f}" for code in places)
        return f"{low if low == high else f'{low} to {high}'}, of {lowest} to {highest}"
    inside = [str(attribute.value(int(code))) for code in torch.nonzero(codes)[:, 0]]
    outside = [str(attribute.value(int(code))) for code in torch.nonzero(~codes)[:, 0]]
    if len(outside) <= FEW < len(inside):
        return f"all but {', '.join(outside)}" if outside else "all"
    return ", ".join(inside) if len(inside) <= FEW else f"{len(inside)} of {attribute.size} values"


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Return a line of text."""
    return f'<text x="{x}" y="{y}"{f" class={kind!r}" if kind else ""}>{escape(words)}</text>'


def block(begin: float, end: float, middle: int, kind: str) -> str:
    """Return a part of a bar."""
    return f'<rect x="{begin:.1f}" y="{middle - 6}" width="{end - begin:.1f}" height="12" class="{kind}"/>'


def circle(x: float, y: float, kind: str) -> str:
    """Return the mark of a record."""
    return f'<circle cx="{x:.1f}" cy="{y}" r="4.5" class="{kind}"/>'


if __name__ == "__main__":
    main()
