from __future__ import annotations

import os
from pathlib import Path

import pytest

from neuronfair.domain.table import TableDomain
from neuronfair.domain.toml import parse_domain

ROOT = Path(__file__).parent.parent

PEOPLE = """
name = "people"
sensitive = ["sex"]
target = { column = "income", classes = ["low", "high"] }

[attributes]
age = { kind = "ordinal", low = 17, high = 90, center = 40, scale = 10 }
sex = { kind = "flag", values = ["F", "M"] }
relationship = { kind = "nominal", values = ["Husband", "Wife", "Child", "Other"] }
marital = { kind = "nominal", values = ["Married", "AF", "Never"] }
race = { kind = "nominal", values = ["A", "B", "C"] }
gain = { kind = "continuous", low = 0, high = 50, step = 0.5, center = 10, scale = 5 }
loss = { kind = "ordinal", low = 0, high = 20 }

[[rules]]
name = "a husband or wife is married"
if = { relationship = ["Husband", "Wife"] }
then = { marital = ["Married", "AF"] }

[[rules]]
name = "gain and loss are not both positive"
forbid = { gain = { min = 0.5 }, loss = { min = 1 } }
"""


@pytest.fixture
def people() -> TableDomain:
    """A domain with every kind of attribute and two rules."""
    return parse_domain(PEOPLE)


def shared(variable: str, folder: str) -> Path:
    """The folder of published data or models, or a skip with the reason."""
    path = Path(os.environ.get(variable) or ROOT / ".." / "shared" / folder).resolve()
    if not path.is_dir():
        pytest.skip(f"the published {folder} are not here: set {variable} to their folder")
    return path


@pytest.fixture
def shared_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the published data; the package finds it too."""
    path = shared("NEURONFAIR_DATA", "data")
    monkeypatch.setenv("NEURONFAIR_DATA", str(path))
    return path


@pytest.fixture
def shared_models() -> Path:
    """The folder of the published weights."""
    return shared("NEURONFAIR_MODELS", "models")
