"""Small models and domains for tests, made by hand or from fixed numbers, so that their content is known."""

# ruff: noqa: D102

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property

import torch
from torch import Tensor, nn

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.draws import Draws
from neuronfair.domain.population.counterfactuals import fit_counterfactuals, with_counterfactuals
from neuronfair.domain.population.plausible import keep_plausible
from neuronfair.domain.schema.toml import parse_domain
from neuronfair.domain.table import TableDomain
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.network import Network
from neuronfair.model.profile import BiasProfile, interpret
from neuronfair.searches.evaluate import evaluate
from neuronfair.searches.method import SearchContext

CHAINS = 8
CASES = ("plain", "people", "pair", "score")
PLAUSIBLE = "plausible"  # like people, limited to plausible ones
COUNTERFACTUAL = "counterfactual"  # counterfactual twins, and a network that does not read the sensitive attribute
CENSUS = """
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


@dataclass(frozen=True)
class Young:
    """A population in which likelihood falls with age, the first attribute: from 1 for the youngest to 0."""

    domain: TableDomain

    @property
    def draws_per_row(self) -> int:
        return self.domain.draws_per_row

    def rows_at(self, u: Tensor) -> Tensor:
        return self.domain.rows_at(u)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return self.domain.sample(n, generator)

    def log_likelihood(self, rows: Tensor) -> Tensor:
        return self.plausibility(rows).log()

    def plausibility(self, rows: Tensor) -> Tensor:
        return 1 - rows[:, 0].double() / (self.domain.attributes[0].size - 1)


@dataclass(frozen=True)
class ExampleCase:
    """A model and a domain, with rows to start from: some anywhere, some that discriminate."""

    module: nn.Module
    domain: TableDomain
    decision: Decision = field(default_factory=Decision)

    @cached_property
    def network(self) -> Network:
        """The model as a network."""
        return network(self.module, self.domain)

    @cached_property
    def context(self) -> SearchContext:
        """What a method may look at in this case."""
        profile = interpret(self.network, self.domain, self.rows)
        return context(self.module, self.domain, decision=self.decision, profile=profile)

    @cached_property
    def rows(self) -> Tensor:
        """Two hundred rows, drawn uniformly."""
        return uniform_rows(self.domain, 200, seed=5)

    @cached_property
    def split(self) -> Tensor:
        """Which of them discriminate."""
        return evaluate(self.network, self.domain, self.rows, self.decision).discriminates

    @cached_property
    def seeds(self) -> Tensor:
        """Five rows that do not discriminate and three that do."""
        return torch.cat([self.rows[~self.split][: CHAINS - 3], self.rows[self.split][:3]])

    def starts(self, phase: str) -> Tensor:
        """Return the rows that a phase starts from; in the local phase all of them discriminate."""
        return self.seeds if phase == "global" else self.rows[self.split][:CHAINS]


@cache
def case(name: str) -> ExampleCase:
    """Return a case: a handmade boundary, many attributes with rules, two sensitive ones, a score, and so on."""
    census = parse_domain(CENSUS)
    if name == "plain":
        return ExampleCase(one_biased_neuron(), domain())
    if name == "people":
        return ExampleCase(random_module(census, seed=1), census)
    if name == "score":
        return ExampleCase(random_module(census, 1, seed=3), census, Decision("tolerance", 2.5))
    if name == PLAUSIBLE:
        return ExampleCase(
            random_module(census, seed=1), keep_plausible(census, Young(census), 0.5, uniform_rows(census, 100))
        )
    if name == COUNTERFACTUAL:
        proxy_domain = domain(attributes=3)
        rows = uniform_rows(proxy_domain, 300)
        rows[:, 0] = (rows[:, 0] + 9 * rows[:, -1]) // 2  # a proxy of the group: below 5, or not
        module = random_module(proxy_domain, seed=1)
        with torch.no_grad():
            next(module.parameters())[:, -1] = 0
        return ExampleCase(module, with_counterfactuals(proxy_domain, fit_counterfactuals(proxy_domain, rows)))
    pair_domain = census.with_sensitive("sex", "marital")  # a rule links the second one to the relationship
    return ExampleCase(random_module(pair_domain, 3, seed=2), pair_domain)


def domain(*, attributes: int = 4, high: int = 9) -> TableDomain:
    """Attributes a0, a1, … on 0 to `high`, and the flag `s`, which is sensitive and comes last; raw encoding."""
    columns = [Attribute(f"a{i}", "ordinal", low=0, high=high) for i in range(attributes)]
    return TableDomain("planted", (*columns, Attribute("s", "flag")), ("s",))


def network(module: nn.Module, domain: TableDomain) -> Network:
    """A module as a network."""
    return Network(module.eval(), domain)


def context(
    module: nn.Module,
    domain: TableDomain,
    *,
    decision: Decision | None = None,
    profile: BiasProfile | None = None,
    blind: bool = False,
    seed: int = 0,
) -> SearchContext:
    """What a method may look at, for a module."""
    net = network(module, domain)
    return SearchContext(net, domain, decision or Decision(), Draws(seed, "test"), profile=profile, blind=blind)


def random_module(domain: TableDomain, outputs: int = 2, *, seed: int = 0, hidden: int = 12) -> nn.Sequential:
    """A small network with random weights, ReLU, and a boundary that runs through the domain."""
    generator = torch.Generator().manual_seed(seed)
    first, second = nn.Linear(TableEncoding.of(domain).width, hidden), nn.Linear(hidden, outputs)
    x = TableEncoding.of(domain).encode(domain.sample(500, generator))
    with torch.no_grad():
        for layer in (first, second):
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator))
        first.weight /= x.std(0).clamp(min=1e-3)
        first.bias.copy_(-(x @ first.weight.T).mean(0))
        second.bias.copy_(-(torch.relu(first(x)) @ second.weight.T).mean(0))
    return nn.Sequential(first, nn.ReLU(), second)


def linear(weight: list[list[float]], bias: list[float]) -> nn.Linear:
    """One linear layer with these weights."""
    layer = nn.Linear(len(weight[0]), len(weight))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))
    return layer


def one_biased_neuron(
    inputs: int = 5, neurons: int = 8, *, biased: int = 3, weight: float = 2.0, boundary: float = 18.5
) -> nn.Sequential:
    """Neuron `biased` of the first layer alone reads the last input; the output compares it with the other inputs.

    The second class wins when the other inputs add up to less than boundary + weight * s: the sensitive bit shifts
    the boundary by `weight` and by nothing else.
    """
    neurons = max(neurons, inputs)
    first, second = nn.Linear(inputs, neurons), nn.Linear(neurons, 2)
    with torch.no_grad():
        for layer in (first, second):
            layer.weight.zero_()
            layer.bias.zero_()
        for i in range(inputs - 1):
            first.weight[i if i < biased else i + 1, i] = 1.0
            second.weight[0, i if i < biased else i + 1] = 1.0
        first.weight[biased, -1] = weight
        second.weight[1, biased] = 1.0
        second.bias[1] = boundary
    return nn.Sequential(nn.Sequential(first, nn.ReLU()), second)


def uniform_rows(domain: TableDomain, n: int, seed: int = 0) -> Tensor:
    """Rows drawn uniformly, the same ones every time."""
    return domain.sample(n, torch.Generator().manual_seed(seed))
