from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from neuronfair import SearchConfig
from neuronfair.audits.comparison import compare_methods
from neuronfair.render.search import compose_comparison
from tests.planted import networks


def test_what_is_said_below_the_table():
    domain = networks.domain()
    network, rows = networks.network(networks.one_biased_neuron(), domain), networks.uniform_rows(domain, 50)
    whole = compare_methods(
        network, domain, rows, ["uniform"], SearchConfig(seeds=5, steps=5, instances=1234), repeats=2
    )
    console = Console(width=200)

    def shown(comparison):
        with console.capture() as text:
            console.print(compose_comparison(comparison, domain))
        return text.get()

    assert "Means over 2 run seeds" in shown(whole)
    assert "At most 1,234 different records tried in each phase." in shown(whole)
    assert "±" in shown(whole)
    assert "Interrupted" not in shown(whole)
    assert "Interrupted: the methods above are complete" in shown(replace(whole, interrupted=True))
