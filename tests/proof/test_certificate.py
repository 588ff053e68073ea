"""Certificates as files: what is written is read again, and what a stranger may have written is refused in one line."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from neuronfair.domain.schema.toml import format_domain
from neuronfair.proof.bounds.space import Axis
from neuronfair.proof.certificate import AxisCodes, CertificateError, read_certificate
from tests.proof.made import certificate_of, domain_of, network_of, written


@pytest.fixture(scope="module")
def certificate():
    domain = domain_of()
    return certificate_of(network_of(domain), domain)


def test_what_is_written_is_read_again(certificate, tmp_path):
    big = 10**40  # more people than any machine's number holds
    boxes = replace(certificate.proof.certified, fair=[big, *certificate.proof.certified.fair[1:]])
    said = replace(
        certificate, where="age >= 21", proof=replace(certificate.proof, certified=boxes, record_count=3 * big)
    )
    back = read_certificate(written(tmp_path, said))
    assert format_domain(back.domain) == format_domain(said.domain)
    for name in ("decision", "where", "fingerprint", "axes", "version"):
        assert getattr(back, name) == getattr(said, name)
    for name in ("record_count", "fair", "discriminatory", "boxes", "seconds"):
        assert getattr(back.proof, name) == getattr(said.proof, name)
    assert back.proof.certified.fair == boxes.fair
    assert back.proof.certified.discriminatory == boxes.discriminatory
    assert np.array_equal(back.proof.certified.low, boxes.low)
    assert np.array_equal(back.proof.certified.high, boxes.high)


def test_the_places_of_an_axis_are_runs_of_codes():
    place = torch.tensor([1, 1, -1, 0, 1])
    axis = Axis(0, place, torch.tensor([3, 0]), torch.tensor([1, 3]), False)
    assert AxisCodes.of(axis, "job") == AxisCodes("job", False, (((3, 3),), ((0, 1), (4, 4))))
    line = Axis(0, torch.tensor([-1, 0, 1]), torch.tensor([1, 2]), torch.tensor([1, 1]), True)
    assert AxisCodes.of(line, "age") == AxisCodes("age", True, (((1, 2),),))
    assert len(AxisCodes.of(line, "age")) == 2


def spoilt(path, columns=None, **note):
    """Write the file again with other columns, or with other things said of it."""
    table = pq.read_table(path)
    said = json.loads(table.schema.metadata[b"neuronfair"]) | note
    for name, column in (columns or {}).items():
        table = table.drop([name]) if column is None else table.set_column(table.column_names.index(name), name, column)
    pq.write_table(table.replace_schema_metadata({b"neuronfair": json.dumps(said)}), path)


AGE = {"column": "age", "linear": True, "codes": [[[0, 9]]]}
JOB = {"column": "job", "linear": False, "codes": [[[3, 3]], [[2, 2]], [[1, 1]], [[0, 0]]]}
HOURS = {"column": "hours", "linear": True, "codes": [[[0, 11]]]}


def numbers(values, kind="int32"):
    return pa.array([*values, *[0] * (12 - len(values))], kind)


OTHER_DIGITS = ["１２", "١٢", "1_000", "+12", "1e3", "012", "12 ", "0x1f", "twelve"]  # int() reads most of them


@pytest.mark.parametrize(
    ("columns", "note", "why"),
    [
        ({}, {"format": 3}, "not in format 2"),
        ({}, {"format": 1}, "an older version of neuronfair wrote it. Prove again"),
        ({}, {"domain": "sensitive = ["}, "TOML"),
        ({}, {"domain": 3}, "domain"),
        ({}, {"decision": {"kind": "coin", "value": 0}}, "decision"),
        ({}, {"decision": {"kind": "argmax", "value": float("nan")}}, "malformed"),
        ({}, {"axes": 3}, "axes"),
        ({}, {"axes": [AGE, JOB]}, "columns are not"),
        ({}, {"axes": [AGE, JOB, {**HOURS, "column": "height"}]}, "no attribute 'height'"),
        ({}, {"axes": [AGE, JOB, {**HOURS, "linear": 1}]}, "linear"),
        ({}, {"axes": [AGE, JOB, {**HOURS, "codes": [[[0, 4]], [[5, 11]]]}]}, "positions of 'hours'"),
        ({}, {"axes": [AGE, JOB, {**HOURS, "codes": [[[0, 12]]]}]}, "position of 'hours'"),
        ({}, {"axes": [AGE, JOB, {**HOURS, "codes": [[[-1, 10]]]}]}, "position of 'hours'"),
        ({}, {"axes": [AGE, JOB, {**HOURS, "codes": [[[0, 1e400]]]}]}, "malformed|int"),
        ({}, {"axes": [AGE, JOB, {**HOURS, "codes": [[[0.5, 1]]]}]}, "int"),
        ({}, {"axes": [AGE, {**JOB, "codes": [[[3, 3]], [[2, 3]], [[1, 1]], [[0, 0]]]}, HOURS]}, "position of 'job'"),
        ({}, {"axes": [AGE, {**JOB, "codes": [[], [[0, 3]], [], []]}, HOURS]}, "positions of 'job'"),
        ({}, {"people": "-5"}, "'-5' is no number of people"),
        ({}, {"people": "9" * 5000}, "is no number of people"),
        ({}, {"people": 960}, "people"),
        *(({}, {"people": text}, "is no number of people") for text in OTHER_DIGITS),
        *(({}, {"boxes": boxes}, "boxes") for boxes in ("many", "12", 1.5, True, -1)),
        *(({}, {"seconds": text}, "seconds|malformed") for text in (*OTHER_DIGITS, float("nan"), float("inf"), "1")),
        *(({}, {"decision": {"kind": "threshold", "value": text}}, "decision.value") for text in (*OTHER_DIGITS, True)),
        ({}, {"decision": {"kind": ["argmax"], "value": 0}}, "decision"),
        ({"low_1": None}, {}, "'low_1' is missing"),
        ({"fair": None}, {}, "'fair' is missing"),
        ({"low_0": numbers([-1])}, {}, "box 1 does not lie"),
        ({"high_0": numbers([10])}, {}, "box 1 does not lie"),
        ({"low_0": numbers([9]), "high_0": numbers([0])}, {}, "box 1 does not lie"),
        ({"low_0": numbers([2**40], "int64")}, {}, "holds int64"),
        ({"low_0": pa.array([None] * 12, pa.int32())}, {}, "is empty"),
        ({"low_0": pa.array(["0"] * 12)}, {}, "columns are not"),
        ({"fair": numbers([3])}, {}, "columns are not"),
        *(({"fair": pa.array([text] * 12)}, {}, "is no number of people") for text in OTHER_DIGITS),
        ({"fair": pa.array([" 1"] * 12)}, {}, "is no number of people"),
        ({"discriminatory": pa.array([1.5] * 12)}, {}, "holds double"),
    ],
)
def test_a_file_that_is_not_as_it_must_be_is_refused(certificate, tmp_path, columns, note, why):
    path = written(tmp_path, certificate)
    spoilt(path, columns, **note)
    with pytest.raises(CertificateError, match=why) as refused:
        read_certificate(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_no_certificate_is_refused(certificate, tmp_path):
    path = written(tmp_path, certificate)
    whole = path.read_bytes()
    plain = tmp_path / "plain.parquet"
    pq.write_table(pa.table({"a": [1]}), plain)
    deep = tmp_path / "deep.parquet"
    pq.write_table(pa.table({"a": pa.array([1], pa.int32())}, metadata={"neuronfair": "[" * 100_000}), deep)
    for name, content in (
        ("text.parquet", b"age,sex\n"),
        ("cut.parquet", whole[: len(whole) // 2]),
        ("no.parquet", None),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
    for name in ("text.parquet", "cut.parquet", "no.parquet", "plain.parquet", "deep.parquet"):
        with pytest.raises(CertificateError, match=name) as refused:
            read_certificate(tmp_path / name)
        assert "\n" not in str(refused.value)
