"""A small audit.json, made by hand."""

from __future__ import annotations

from typing import Any

from neuronfair.measure.rate import Rate


def rate(found: int, people: int, distribution: str = "valid") -> dict[str, Any]:
    measured = Rate(found, people, distribution)
    low, high = measured.interval
    return {
        "distribution": distribution,
        "share": measured.rate,
        "low": low,
        "high": high,
        "confidence": 0.95,
        "people": people,
        "discriminated": found,
    }


def search(method: str, findings: int = 50, lift: float | None = 4.0, **more: Any) -> dict[str, Any]:
    figures = {"method": method, "folder": f"sex/{method}", "findings": findings, "tried": 1000, "gsr": findings / 1000}
    return figures | {"seconds": 1.5, "lift": lift, "stop": "steps"} | more


def pair(name: str = "sex", **row: Any) -> dict[str, Any]:
    row = {"age": 39, "sex": "F"} | row
    return {
        "number": 17,
        "method": "frontier",
        "row": row,
        "changed": [{"attribute": name, "from": "F", "to": "M"}],
        "decision": "low",
        "other_decision": "high",
        "gap": 3.0,
        "sentence": f"A person with age {row['age']} is decided low; with {name} M instead of F: high.",
        "replay": f"neuronfair replay RUN/{name}/frontier 17",
    }


def attribute(name: str = "sex", found: int = 300, people: int = 10_000, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "sensitive": name.split("+"),
        "rate": {"valid": rate(found, people), "data": rate(2, 50, "data")},
        "interpretation": {"worst": "l2", "layers": [{"name": "l1", "auc": 0.2}, {"name": "l2", "auc": 0.4}]},
        "searches": [search("frontier", 80, 8.0), search("neuronfair")],
        "severity": {"median": 1.0, "p95": 2.5, "max": 3.0},
        "worst": [pair(name)],
        "health": [],
    } | more


def fair(name: str = "sex") -> dict[str, Any]:
    """Nobody is found."""
    nobody = {"searches": [search("frontier", 0, None), search("neuronfair", 0, None)], "severity": None, "worst": []}
    return attribute(name, 0, 10_000, **nobody)


def summary(*attributes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "neuronfair": "0.1.0",
        "verdict": {"level": "discriminates", "text": "3 % of all valid people are decided otherwise."},
        "data": {"name": "people", "rows": 50},
        "model": {
            "source": "m.onnx",
            "kind": "ONNX",
            "white_box": True,
            "fingerprint": "abc",
            "accuracy": {"train": 0.9, "test": 0.8},
        },
        "decision": {"kind": "argmax", "value": 0.0},
        "attributes": list(attributes) or [attribute()],
        "repair": None,
        "corpus": None,
        "baseline": None,
        "gate": None,
        "reproduction": {
            "command": "neuronfair audit people.csv",
            "created": "2024-05-06T07:08:09+0000",
            "domain": "d1",
            "rows": "r1",
            "interrupted": False,
        },
    } | more
