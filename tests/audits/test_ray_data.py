"""The flip rate of a `ray.data.Dataset` is that of the same table on one machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import neuronfair as nf
from neuronfair.audits.ray_data import add_directions
from neuronfair.errors import DataError
from neuronfair.measure.rate import Direction, GroupOutcomes

pd = pytest.importorskip("pandas", reason="needs the extra [sklearn]")
MEN, WOMEN = (1,), (0,)


def hires(table: Any) -> Any:
    """Men from 30 on, women from 50 on."""
    return np.where(table.age >= np.where(table.sex == "m", 30, 50), "yes", "no")


def people(number: int, seed: int = 0) -> Any:
    draw = np.random.default_rng(seed)
    ages, sexes = draw.integers(20, 70, number), draw.choice(["f", "m"], number)
    return pd.DataFrame({"age": ages, "sex": sexes, "hired": draw.choice(["no", "yes"], number)})


def schema() -> nf.TableDomain:
    domain = nf.infer_domain(people(5_000), sensitive=["sex"], target="hired")
    return replace(domain, favourable="yes")


def test_flags_say_for_whom_the_decision_depends_on_the_attribute():
    table = people(500)
    flagged = nf.flag_flips(hires, table, domain=schema())
    assert flagged.flips.tolist() == table.age.between(30, 49).tolist()
    assert flagged.decision.tolist() == hires(table).tolist()
    assert list(table) == ["age", "sex", "hired"]  # the table itself is as it was


def test_flags_overwrite_nothing_and_need_a_table_that_takes_columns():
    with pytest.raises(DataError, match="has a column 'decision' already"):
        nf.flag_flips(hires, people(50).assign(decision="x"), domain=schema())
    with pytest.raises(DataError, match="takes a pandas DataFrame"):
        nf.flag_flips(hires, {"age": [20], "sex": ["f"]}, sensitive="sex")


def test_a_domain_is_measured_by_itself_only():
    with pytest.raises(DataError, match="Leave out the other domain"):
        nf.rate(hires, schema(), domain=schema())


def test_directions_of_batches_add_up_and_lead_with_the_largest_difference():
    first = Direction(5, (GroupOutcomes(MEN, 4, 1), GroupOutcomes(WOMEN, 1, 4)))
    second = Direction(2, (GroupOutcomes(WOMEN, 2, 0),))
    assert add_directions([first, None, second]) == Direction(7, (GroupOutcomes(MEN, 4, 1), GroupOutcomes(WOMEN, 3, 4)))
    assert add_directions([None]) is None


def test_a_rate_with_a_domain_reads_the_table_by_it():
    with pytest.raises(DataError, match="unknown value 'x'"):
        nf.rate(hires, people(50).assign(sex="x"), domain=schema())


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="needs the extra [ray]")
    pytest.importorskip("ray.data", reason="needs the extra [ray]")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray's own modules
def test_the_rate_of_a_ray_dataset_is_that_of_one_machine(ray: Any):
    table, domain = people(3_000), schema()
    parts = ray.data.from_pandas([table[start::7] for start in range(7)])
    counts: list[int] = []
    rate = nf.rate(hires, parts, domain=domain, progress=lambda done, _: counts.append(done))
    alone = nf.rate(hires, table, domain=domain, samples=len(table))
    assert rate == alone
    assert rate.flips == int(table.age.between(30, 49).sum())
    assert rate.direction == Direction(
        rate.flips, (GroupOutcomes(WOMEN, 0, rate.flips), GroupOutcomes(MEN, rate.flips, 0))
    )
    assert counts[-1] == 3_000

    flagged = nf.flag_flips(hires, parts, domain=domain)
    assert int(flagged.sum("flips")) == rate.flips
    with pytest.raises(DataError, match="Leave out samples"):
        nf.rate(hires, parts, domain=domain, samples=100)
    with pytest.raises(DataError, match="no records"):
        nf.rate(hires, ray.data.from_pandas([table[:0]]), domain=domain)
    strange = ray.data.from_pandas([table[:100], table[100:200].assign(sex="x")])
    with pytest.raises(DataError, match="unknown value 'x'"):
        nf.rate(hires, strange, domain=domain)
