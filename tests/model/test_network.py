"""Network against pencil numbers, and against everything that must stay as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from neuronfair.errors import ModelError
from neuronfair.model.network import Network
from neuronfair.model.weights import fully_connected
from tests.planted.networks import Given

X = torch.tensor([[1.0, 2.0, -1.0], [0.0, -1.0, 3.0]])
W1 = torch.tensor([[1.0, -1.0, 0.0], [2.0, 1.0, -1.0], [0.0, 0.0, 1.0], [-1.0, 1.0, 1.0]])
B1 = torch.tensor([0.0, 1.0, 0.5, -1.0])
W2 = torch.tensor([[1.0, 0.5, -1.0, 2.0], [0.0, -1.0, 1.0, 3.0]])
B2 = torch.tensor([0.25, -0.5])
# Hidden layer, before -> after the ReLU.
# row 1: (1-2, 2+2+1+1, -1+0.5, -1+2-1-1) = (-1, 6, -0.5, -1) -> (0, 6, 0, 0)
# row 2: (0+1, -1-3+1, 3+0.5, -1+3-1) = (1, -3, 3.5, 1) -> (1, 0, 3.5, 1)
H = torch.tensor([[0.0, 6.0, 0.0, 0.0], [1.0, 0.0, 3.5, 1.0]])
# Scores. row 1: (3 + 0.25, -6 - 0.5); row 2: (1 - 3.5 + 2 + 0.25, 3.5 + 3 - 0.5)
S = torch.tensor([[3.25, -6.5], [-0.25, 6.0]])
# d score_1 / d x = sum over the live neurons of W2[1] * W1.
# row 1: -1 * (2, 1, -1); row 2: 1 * (0, 0, 1) + 3 * (-1, 1, 1)
G = torch.tensor([[-2.0, -1.0, 1.0], [-3.0, 3.0, 4.0]])


def write(first: nn.Linear, second: nn.Linear) -> None:
    with torch.no_grad():
        for target, value in zip((first.weight, first.bias, second.weight, second.bias), (W1, B1, W2, B2), strict=True):
            target.copy_(value)


def pencil(activation: nn.Module | None = None) -> nn.Sequential:
    module = nn.Sequential(nn.Linear(3, 4), activation or nn.ReLU(), nn.Linear(4, 2))
    write(module[0], module[2])
    return module


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        write(self.first, self.second)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(functional.relu(self.first(x)))


class Bomb(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ZeroDivisionError("must not be reached")


def hooks(module: nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())


@pytest.fixture
def network() -> Network:
    return Network(pencil(), Given(X))


def test_pencil_numbers(network: Network) -> None:
    assert (network.outputs, network.layers, network.neurons) == (2, ("1",), {"1": 4})
    torch.testing.assert_close(network.scores(X), S)
    torch.testing.assert_close(network.activations(X), {"1": H})
    torch.testing.assert_close(network.gradient(X, lambda scores: scores[:, 1]), G)
    torch.testing.assert_close(network.gradient(X, lambda scores: scores[:, 1].sum()), G)


def test_gradient_at_a_layer_by_pencil(network: Network) -> None:
    # d (h . (1, 2, 3, 4)) / d x; row 1: 2 * (2, 1, -1); row 2: 1 * (1, -1, 0) + 3 * (0, 0, 1) + 4 * (-1, 1, 1)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    slope = network.gradient(X, lambda h: h @ weights, layer="1")
    torch.testing.assert_close(slope, torch.tensor([[4.0, 2.0, -2.0], [-3.0, 3.0, 7.0]]))


def test_gradient_through_some_neurons(network: Network) -> None:
    def slope(counted: Tensor) -> Tensor:
        return network.gradient(X, lambda scores: scores[:, 1], through=("1", counted))

    some = torch.tensor([[True, False, True, False], [False, True, True, False]])
    torch.testing.assert_close(slope(torch.ones_like(some)), G)
    assert (slope(torch.zeros_like(some)) == 0).all()
    torch.testing.assert_close(slope(some) + slope(~some), G)  # what one half does not carry, the other one does
    weights = network.module[2].weight[1] * (some & (H > 0))  # ReLU lets active neurons pass
    torch.testing.assert_close(slope(some), weights @ network.module[0].weight)
    assert hooks(network.module) == 0
    with pytest.raises(ModelError, match="no layer 'x'"):
        network.gradient(X, lambda scores: scores[:, 1], through=("x", some))


@pytest.mark.parametrize("layer", [None, "layer1", "layer2"])
def test_gradient_against_finite_differences(layer: str | None) -> None:
    torch.manual_seed(3)
    network = Network(fully_connected(5, (7, 6), 3).double(), Given(torch.zeros(1, 5)))
    x = torch.randn(4, 5, dtype=torch.float64)

    def objective(values: Tensor) -> Tensor:
        return (values.sin() * values).sum(1)

    def value(rows: Tensor) -> Tensor:
        return objective(network.scores(rows) if layer is None else network.activations(rows, [layer])[layer])

    step = 1e-6 * torch.eye(5, dtype=torch.float64)
    expected = torch.stack([(value(x + e) - value(x - e)) / 2e-6 for e in step], 1)
    torch.testing.assert_close(network.gradient(x, objective, layer=layer), expected, rtol=1e-6, atol=1e-8)


def test_zoo_layers_carry_short_names() -> None:
    network = Network(fully_connected(13), Given(torch.zeros(2, 13)))
    assert network.neurons == {"layer1": 64, "layer2": 32, "layer3": 16, "layer4": 8, "layer5": 4}


def test_a_sequential_inside_a_sequential_lends_its_name() -> None:
    inner = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh()))
    network = Network(nn.Sequential(inner, nn.Sequential(nn.ELU(), nn.Linear(4, 2))), Given(X))
    assert network.layers == ("0", "1.0")


@pytest.mark.parametrize(
    "last", [nn.Sigmoid(), nn.Softmax(dim=1), nn.Sequential(nn.Tanh()), nn.Sequential(nn.Sigmoid(), nn.Flatten())]
)
def test_an_activation_at_the_output_is_not_hidden(last: nn.Module) -> None:
    assert Network(nn.Sequential(pencil(), last), Given(X)).layers == ("0.1",)


def test_flat_output_becomes_one_column() -> None:
    network = Network(nn.Sequential(pencil(), nn.Linear(2, 1), nn.Sigmoid(), nn.Flatten(0)), Given(X))
    assert network.outputs == 1
    assert network.scores(X).shape == (2, 1)
    assert network.layers == ("0.1",)
    assert network.gradient(X, lambda scores: scores[:, 0]).shape == (2, 3)


def test_inplace_activations_give_the_same_values() -> None:
    network = Network(pencil(nn.ReLU(inplace=True)), Given(X))
    torch.testing.assert_close(network.activations(X), {"1": H})
    torch.testing.assert_close(network.gradient(X, lambda scores: scores[:, 1]), G)


def test_a_later_inplace_operation_does_not_spoil_what_was_read() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Hardtanh(0.0, 0.5, inplace=True), nn.Linear(4, 2))
    write(module[0], module[3])
    seen = Network(module, Given(X)).activations(X)
    torch.testing.assert_close(seen, {"1": H, "2": H.clamp(max=0.5)})


def test_a_network_that_begins_in_place_leaves_the_rows_alone() -> None:
    network = Network(nn.Sequential(nn.ReLU(inplace=True), pencil()), Given(X))
    rows = X.clone()
    network.scores(rows)
    slope = network.gradient(rows, lambda scores: scores[:, 0])
    assert torch.equal(rows, X)
    assert slope[0, 2] == 0  # X[0, 2] is negative, so the first ReLU stops it
    assert slope[0, 0] == 1.0 * 0.5 * 2  # only neuron 1 lives: W2[0, 1] * W1[1, 0]


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.relu = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.relu(self.b(self.relu(self.a(x)))))


def test_a_shared_activation_is_one_layer_per_call() -> None:
    torch.manual_seed(0)
    module = Shared()
    network = Network(module, Given(X))
    assert network.neurons == {"relu": 4, "relu#2": 5}
    first = module.a(X).relu()
    second = module.b(first).relu()
    seen = network.activations(X, ["relu#2", "relu"])
    assert list(seen) == ["relu#2", "relu"]
    torch.testing.assert_close(seen, {"relu#2": second.detach(), "relu": first.detach()})
    with network.ablated("relu#2", range(5)):
        torch.testing.assert_close(network.scores(X), module.c.bias.detach().expand(2, 2))
        torch.testing.assert_close(network.activations(X)["relu"], first.detach())


def test_convolutions_are_flattened() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2))
    images = torch.randn(5, 1, 4, 4)
    network = Network(module, Given(images[:1]))
    assert network.neurons == {"1": 27}
    torch.testing.assert_close(network.activations(images)["1"], module[:3](images).detach())
    assert network.gradient(images, lambda h: h.sum(1), layer="1").shape == images.shape
    with network.ablated("1", [0, 26]):
        left = module[:3](images).detach()
        left[:, [0, 26]] = 0
        torch.testing.assert_close(network.scores(images), module[3](left).detach())


def test_functions_are_traced_and_agree_with_modules(network: Network) -> None:
    module = Functional()
    traced = Network(module, Given(X))
    assert traced.neurons == {"first_relu": 4}
    assert dict(module.named_modules()).keys() == {"", "first", "second"}
    torch.testing.assert_close(traced.scores(X), S)
    torch.testing.assert_close(traced.activations(X)["first_relu"], H)
    torch.testing.assert_close(traced.gradient(X, lambda s: s[:, 1]), G)
    for neurons in ([2], [0, 1, 3]):
        with network.ablated("1", neurons), traced.ablated("first_relu", neurons):
            torch.testing.assert_close(traced.scores(X), network.scores(X))
    with torch.no_grad():
        module.second.bias += 1  # parameters are shared, not copied
    torch.testing.assert_close(traced.scores(X), S + 1)


class Spellings(Functional):
    def forward(self, x: Tensor) -> Tensor:
        h = functional.gelu(self.first(x) + 1, approximate="tanh")
        return torch.sigmoid(self.second(h).tanh() * 2)


def test_traced_functions_are_named_after_what_feeds_them() -> None:
    module = Spellings()
    network = Network(module, Given(X))
    assert network.layers == ("add_gelu", "second_tanh")  # the sigmoid is the output
    torch.testing.assert_close(network.scores(X), module(X).detach())


class Untraceable(Functional):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(functional.relu(self.first(x))) if x.sum() > -1e9 else x


def test_where_tracing_fails_the_layers_are_named_by_hand() -> None:
    with pytest.raises(ModelError, match=r"layers=\["):
        Network(Untraceable(), Given(X))
    network = Network(Untraceable(), Given(X), layers=["first"])
    torch.testing.assert_close(network.activations(X)["first"], torch.tensor([[-1.0, 6, -0.5, -1], [1, -3, 3.5, 1]]))


def test_a_network_without_hidden_layers_says_so() -> None:
    with pytest.raises(ModelError, match=r"no hidden activation found.*layers=\["):
        Network(nn.Linear(3, 2), Given(X))


def test_layers_by_name_come_in_forward_order() -> None:
    network = Network(pencil(), Given(X), layers=["2", "0"])
    assert network.layers == ("0", "2")
    torch.testing.assert_close(network.activations(X)["2"], S)


@pytest.mark.parametrize(("name", "message"), [("3", "no part '3'"), ("1#2", "never reaches 1#2"), ("1#x", "no part")])
def test_unknown_layers_are_named(name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Network(pencil(), Given(X), layers=[name])
    with pytest.raises(ModelError, match="no layer"):
        Network(pencil(), Given(X)).activations(X, [name])


def test_the_forward_pass_stops_at_the_last_wanted_layer() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    network = Network(module, Given(X))
    module[2] = Bomb()
    assert network.activations(X, ["1"])["1"].shape == (2, 4)
    assert network.gradient(X, lambda h: h.sum(), layer="1").shape == (2, 3)
    with pytest.raises(ModelError, match=r"the module failed on rows of shape \(2, 3\): must not be reached"):
        network.activations(X, ["1", "3"])
    assert hooks(module) == 0


class Failing(nn.Module):
    fail = False

    def forward(self, x: Tensor) -> Tensor:
        if self.fail:
            raise ZeroDivisionError
        return x


def test_nothing_is_left_behind_after_failures() -> None:
    failing = Failing()
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), failing, nn.Linear(4, 4), nn.ReLU())
    module.append(nn.Linear(4, 2)).train()
    module[4].eval()
    module[0].weight.requires_grad_(False)
    modes = [part.training for part in module.modules()]
    wanted = [p.requires_grad for p in module.parameters()]
    network = Network(module, Given(X))

    def raises(values: Tensor) -> Tensor:
        raise ZeroDivisionError

    def calls() -> Iterator[None]:
        network.activations(X, ["1"])  # the early stop
        yield
        with pytest.raises(ZeroDivisionError):
            network.gradient(X, raises, layer="1")
        yield
        with pytest.raises(ZeroDivisionError), network.ablated("1", [0]):
            network.gradient(X, raises)
        yield
        failing.fail = True
        with pytest.raises(ModelError, match="ZeroDivisionError"):
            network.activations(X)
        yield
        with pytest.raises(ModelError, match="ZeroDivisionError"), network.ablated("1", [0]):
            network.scores(X)
        yield

    for _ in calls():
        assert hooks(module) == 0
        assert [part.training for part in module.modules()] == modes
        assert [p.requires_grad for p in module.parameters()] == wanted
        assert all(p.grad is None for p in module.parameters())
    failing.fail = False
    rest = module.eval()(X).detach()
    torch.testing.assert_close(network.scores(X), rest)  # no ablation survived


def test_train_mode_does_not_reach_the_results() -> None:
    module = nn.Sequential(nn.BatchNorm1d(3), pencil(), nn.Dropout(0.9)).train()
    network = Network(module, Given(X))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    scores = network.scores(X)
    assert torch.equal(scores, network.scores(X))
    torch.testing.assert_close(network.scores(X[:1]), scores[:1])
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(part.training for part in module.modules())


def test_ablation_zeroes_exactly_the_named_neurons(network: Network) -> None:
    with network.ablated("1", torch.tensor([1, 3])) as same:
        assert same is network
        torch.testing.assert_close(network.activations(X)["1"], H * torch.tensor([1.0, 0, 1, 0]))
        # row 1: only the biases are left; row 2: (1 - 3.5 + 0.25, 3.5 - 0.5)
        torch.testing.assert_close(network.scores(X), torch.tensor([[0.25, -0.5], [-2.25, 3.0]]))
        slope = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
        torch.testing.assert_close(network.gradient(X, lambda scores: scores[:, 1]), slope)
        with network.ablated("1", [2]):
            torch.testing.assert_close(network.activations(X)["1"], H * torch.tensor([1.0, 0, 0, 0]))
        torch.testing.assert_close(network.activations(X)["1"], H * torch.tensor([1.0, 0, 1, 0]))
    torch.testing.assert_close(network.scores(X), S)


def test_ablating_nobody_changes_nothing(network: Network) -> None:
    with network.ablated("1", []):
        torch.testing.assert_close(network.scores(X), S)


@pytest.mark.parametrize("neurons", [[4], [-1], [0, 9]])
def test_ablation_refuses_neurons_that_are_not_there(network: Network, neurons: list[int]) -> None:
    with pytest.raises(ModelError, match="neurons 0 to 3"), network.ablated("1", neurons):
        pass


def test_rows_are_counted(network: Network) -> None:
    assert (network.rows_forward, network.rows_backward) == (0, 0)
    network.scores(X)
    network.activations(X[:1])
    network.gradient(X, lambda scores: scores.sum())
    assert (network.rows_forward, network.rows_backward) == (3, 2)


def test_rows_of_the_wrong_shape_are_refused(network: Network) -> None:
    for call in (network.scores, network.activations, lambda x: network.gradient(x, lambda s: s.sum())):
        with pytest.raises(ModelError, match=r"\(n, 3\), got \(2, 5\)"):
            call(torch.zeros(2, 5))
        with pytest.raises(ModelError, match=r"\(n, 3\), got \(3,\)"):
            call(torch.zeros(3))
    with pytest.raises(ModelError, match=r"shape \(1, 5\).*width 3"):
        Network(pencil(), Given(torch.zeros(1, 5)))


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (lambda out: out.argmax(1), "int64"),
        (lambda out: (out, out), "tuple"),
        (lambda out: out[None], r"\(1, 2, 2\)"),
        (lambda out: out[:1], r"\(1, 2\)"),
    ],
)
def test_outputs_that_are_not_scores_are_refused(last: object, message: str) -> None:
    class Odd(Functional):
        def forward(self, x: Tensor) -> Tensor:
            return last(super().forward(x))  # type: ignore[operator]

    with pytest.raises(ModelError, match=message):
        Network(Odd(), Given(X))


def test_objectives_that_cannot_be_differentiated_are_refused(network: Network) -> None:
    with pytest.raises(ModelError, match="detaches"):
        network.gradient(X, lambda scores: scores.detach().sum())
    with pytest.raises(ModelError, match=r"one per row \(2,\); got \(2, 2\)"):
        network.gradient(X, lambda scores: scores)


def test_rows_are_cast(network: Network) -> None:
    assert network.scores(X.double()).dtype == torch.float32
    torch.testing.assert_close(network.scores(X.long()), S)
    assert Network(pencil().double(), Given(X)).scores(X).dtype == torch.float64


def test_gradients_work_where_gradients_are_switched_off(network: Network) -> None:
    rows = X.clone().requires_grad_()
    with torch.no_grad():
        torch.testing.assert_close(network.gradient(rows, lambda scores: scores[:, 1]), G)
    assert rows.grad is None
    assert not network.scores(rows).requires_grad
    assert not network.activations(rows)["1"].requires_grad


class Tokens(nn.Module):
    """A token for each of 5 numbers, attention among them, and a head that reads their mean."""

    def __init__(self, attention: nn.Module, *, head: nn.Module | None = None) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.randn(5, 8, generator=torch.manual_seed(i))) for i in (1, 2))
        self.attention, self.head = attention, head or nn.Linear(8, 2)

    def forward(self, x):
        tokens = x.unsqueeze(-1) * self.weight + self.bias
        if isinstance(self.attention, nn.MultiheadAttention):
            tokens = self.attention(tokens, tokens, tokens)[0]
        else:
            tokens = self.attention(tokens)
        return self.head(tokens.mean(1))


def encoder_layer(**options) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)


@pytest.mark.parametrize(
    ("make", "neurons"),
    [
        (lambda: Tokens(nn.MultiheadAttention(8, 2, batch_first=True)), {"attention": 40}),
        (lambda: Tokens(encoder_layer()), {"attention": 40}),
        (lambda: Tokens(encoder_layer(activation="gelu", norm_first=True)), {"attention": 40}),
        (
            lambda: Tokens(nn.TransformerEncoder(encoder_layer(), 2)),
            {"attention.layers.0": 40, "attention.layers.1": 40},
        ),
        (
            lambda: Tokens(encoder_layer(), head=nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))),
            {"attention": 40, "head.1": 4},
        ),
    ],
)
def test_attention_is_a_hidden_layer(make, neurons):
    """The quicker way of a transformer's layer in eval mode skips what is inside of it, but not the layer."""
    torch.manual_seed(0)
    module, rows = make().eval(), torch.randint(0, 2, (6, 5))
    network = Network(module, Given(torch.zeros(2, 5)))
    assert network.neurons == neurons
    with torch.no_grad():
        assert torch.allclose(network.scores(rows), module(rows.float()), atol=1e-6)
    name = next(iter(neurons))
    active = network.activations(rows)[name]
    assert active.shape == (6, 40)
    slope = network.gradient(rows, lambda scores: scores[:, 1])
    step = 1e-3 * torch.eye(5)[0]
    with torch.no_grad():
        change = (module(rows + step) - module(rows - step))[:, 1] / 2e-3
    assert torch.allclose(slope[:, 0], change, atol=1e-2)
    assert (slope != 0).any()
    with network.ablated(name, range(40)):
        assert (network.activations(rows)[name] == 0).all()
        silenced = network.scores(rows)
    assert torch.allclose(silenced, silenced[:1], atol=1e-6)  # nothing of the rows gets through
    assert torch.allclose(network.activations(rows)[name], active)


def test_attention_with_tokens_before_rows_is_not_read():
    class Turned(Tokens):
        def forward(self, x):
            tokens = (x.unsqueeze(-1) * self.weight + self.bias).transpose(0, 1)
            return self.head(self.attention(tokens, tokens, tokens)[0].mean(0))

    with pytest.raises(ModelError, match="no hidden activation"):
        Network(Turned(nn.MultiheadAttention(8, 2)), Given(torch.zeros(2, 5)))
