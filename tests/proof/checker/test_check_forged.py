"""Certificates made to exhaust memory or time: each is refused in one line, within limits that a process is given."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from neuronfair.domain.schema.toml import format_domain, parse_domain
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.model.weights import fingerprint
from neuronfair.proof.certificate import (
    AxisCodes,
    Certificate,
    CertificateError,
    CertifiedBoxes,
    Proof,
    write_certificate,
)
from neuronfair.proof.checker import check as claims
from neuronfair.proof.checker.check import check
from tests.proof.made import certificate_of, domain_of, network_of, written

CHECK = """
import re, sys, time
from neuronfair.proof.checker.check import check
from neuronfair.errors import NeuronFairError
from tests.proof.checker.test_check_forged import network_for
for path in sys.argv[1:]:
    begun = time.perf_counter()
    try:
        check(path, network_for())
        said = "verified"
    except NeuronFairError as error:
        said = str(error)
    memory = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1e6
    print(f"{time.perf_counter() - begun} {memory} {said[:400]!r}")
"""
SECONDS, GIGABYTES = 30.0, 2.0
BUSY = 4  # times as long, where other tests run at the same time
WIDE = """
name = "wide"
sensitive = ["sex"]
[attributes]
sex = { kind = "flag", values = ["f", "m"] }
""" + "".join(f"a{i} = {{ kind = 'ordinal', low = 0, high = 99 }}\n" for i in range(12))


def network_for() -> Network:
    """A network over twelve numbers that no box of all people is proved of."""
    domain = parse_domain(WIDE)
    return network_of(domain, outputs=1, seed=2)


def whole(**changes: object) -> Certificate:
    """One box that claims that everybody is decided alike."""
    domain, network = parse_domain(WIDE), network_for()
    axes = tuple(AxisCodes(f"a{i}", True, (((0, 99),),)) for i in range(12))
    low = np.zeros((1, 12), np.int32)
    people = 2 * 100**12
    proof = Proof(people, people, 0, 1, 1.0, CertifiedBoxes(low, low + 99, [people], [0]))
    return replace(
        Certificate(domain, Decision("threshold", 0.0), "", fingerprint(network.module), axes, proof), **changes
    )


def bomb(path: Path, kind: str) -> Path:
    """A small file of which much would be made."""
    write_certificate(path, whole())
    table = pq.read_table(path)
    note = json.loads(table.schema.metadata[b"neuronfair"])
    if kind == "rows":
        schema = table.schema
        texts = pa.array(["0"] * (1 << 20))
        zeros = [pa.array(np.zeros(1 << 20, np.int32)) if t.type == pa.int32() else texts for t in schema]
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for _ in range(8):
                writer.write_table(pa.table(zeros, schema=schema))
        return path
    if kind == "note":
        note["axes"] = [[]] * 5_000_000
    elif kind == "places":
        note["axes"][0] = {"column": "a0", "linear": False, "codes": [[[0, 0]] * 99 for _ in range(2_000)]}
    elif kind == "region":
        note["where"] = "a0 in [" + "1, " * 2_000_000 + "1]"
    pq.write_table(table.replace_schema_metadata({"neuronfair": json.dumps(note)}), path)
    return path


EXPECTED = {
    "rows": "GB of memory",
    "note": "GB of memory|no certificate",
    "places": "codes of another",
    "region": "letters",
    "claim": "could be verified",
}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the largest memory of a process is read on Linux")
def test_files_that_would_exhaust_memory_or_time_are_refused_within_limits(tmp_path):
    paths = [bomb(tmp_path / f"{kind}.parquet", kind) for kind in EXPECTED]
    command = [sys.executable, "-c", CHECK, *map(str, paths)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    lines = found.stdout.splitlines()
    assert len(lines) == len(paths)
    for line, why in zip(lines, EXPECTED.values(), strict=True):
        seconds, memory, said = line.split(" ", 2)
        assert re.search(why, said), line
        assert float(seconds) < BUSY * SECONDS, line
        assert float(memory) < GIGABYTES, line


@pytest.mark.parametrize(
    ("domain", "why"),
    [
        (WIDE.replace("high = 99", "high = 99_999_999"), "at most can be checked"),
        (
            WIDE.replace('sensitive = ["sex"]', 'sensitive = ["sex", "a0", "a1"]'),
            "combinations of sensitive values",
        ),
    ],
)
def test_a_domain_that_is_too_large_is_refused_before_anything_is_made_of_it(tmp_path, domain, why):
    parsed = parse_domain(domain)
    axes = tuple(
        AxisCodes(a.name, True, (((0, a.size - 1),),)) for a in parsed.attributes if a.name not in parsed.sensitive
    )
    low = np.zeros((1, len(axes)), np.int32)
    people = parsed.count
    boxes = CertifiedBoxes(low, low + [len(axis) - 1 for axis in axes], [people], [0])
    forged = whole(domain=parsed, axes=axes, proof=Proof(people, people, 0, 1, 1.0, boxes))
    path = tmp_path / "wide.parquet"
    write_certificate(path, forged)
    with pytest.raises(CertificateError, match=why):
        check(path, network_for())


def test_parts_of_many_boxes_are_bounded_together(monkeypatch, tmp_path):
    """Boxes that must all be cut are cut a few at a time, and what is true of them is still proved."""
    domain = domain_of()
    network = network_of(domain, seed=5)
    monkeypatch.setattr(claims, "MAX_ENUMERATED_AT_ONCE", 1)
    monkeypatch.setattr(claims, "MAX_ENUMERATED", 1)
    monkeypatch.setattr(claims, "MAX_PARTS_TOGETHER", 40)
    kept = []
    examined = claims._examine

    def counting(bounds, low, *rest, **options):
        kept.append(len(low))
        return examined(bounds, low, *rest, **options)

    monkeypatch.setattr(claims, "_examine", counting)
    certificate = certificate_of(network, domain, pieces=12)
    assert check(written(tmp_path, certificate), network).fair == certificate.proof.fair
    assert max(kept) <= 480  # never more than one box has


def test_scales_and_labels_that_were_changed_are_refused_or_true(tmp_path):
    """What a certificate says of its own domain must hold for that domain; a domain that is named must be the same."""
    domain = domain_of()
    network = network_of(domain, seed=5)
    certificate = certificate_of(network, domain)
    changed = replace(
        certificate, domain=parse_domain(text := format_domain(domain).replace("center = 25", "center = 22"))
    )
    assert "center = 22" in text
    with pytest.raises(CertificateError, match="could be verified"):
        check(written(tmp_path, changed), Network(network.module, changed.domain))
    with pytest.raises(CertificateError, match="another domain, other rules"):
        check(written(tmp_path, changed), network, domain=domain)
    renamed = replace(certificate, domain=parse_domain(format_domain(domain).replace('"F", "M"', '"M", "F"')))
    with pytest.raises(CertificateError, match="another domain, other rules"):
        check(written(tmp_path, renamed), network, domain=domain)
