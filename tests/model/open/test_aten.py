"""What an exported graph may call: the table, and files that try for more."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from neuronfair.errors import ModelError
from neuronfair.limits import TooLarge
from neuronfair.model.open import open_model
from neuronfair.model.open.aten import FUNCTIONS, activation
from neuronfair.model.open.graph import Unsupported
from tests.model.open.archives import node, ref, with_json, with_nodes

ATEN = "torch.ops.aten."


CODE = "__import__('pathlib').Path('marker').touch()"
# Attributes of Python objects taken for operations, up to a class whose items are what eval() makes of their keys. A
# reader that looks operations up by getattr runs the code and says nothing.
CHAIN = [
    node(f"{ATEN}__getattr__.__getattribute__", ["__globals__"], "globals"),
    node("_operator.getitem", [ref("globals"), "__builtins__"], "builtins"),
    node("_operator.getitem", [ref("builtins"), "eval"], "eval"),
    node(f"{ATEN}__dict__.__class__", [], "body", __class_getitem__=ref("eval")),
    node(f"{ATEN}__dict__.__reduce_ex__", [2], "maker", "bases"),
    node(f"{ATEN}__class__.__class__", ["X", ref("bases"), ref("body")], "X"),
    node("_operator.getitem", [ref("X"), CODE], "done"),
]
ATTACKS = {
    "the chain": CHAIN,
    "the chain without outputs": [CHAIN[0] | {"outputs": []}],
    "a class made": [node(f"{ATEN}__class__.__class__", ["X"], "done")],
    "a dictionary made": [node(f"{ATEN}__dict__.__class__", [], "done")],
    "an attribute of an operation": [node(f"{ATEN}relu.__getattribute__", ["__globals__"], "done")],
    "an attribute of an overload": [node(f"{ATEN}relu.default.__class__", [ref("input")], "done")],
    "an overload with dots": [node(f"{ATEN}relu.default.py_kernels.clear", [], "done")],
    "no overload": [node(f"{ATEN}relu", [ref("input")], "done")],
    "the namespace": [node("torch.ops.__class__.__getattribute__", ["load_library"], "done")],
    "a library": [node("torch.ops.load_library", ["marker.so"], "done")],
    "torch.ops.prims": [node("torch.ops.prims.neg.default", [ref("input")], "done")],
    "torch.ops.higher_order": [node("torch.ops.higher_order.cond", [ref("input")], "done")],
    "torch.ops.inductor": [node("torch.ops.inductor._alloc_from_pool.default", [ref("input")], "done")],
    "another namespace": [node("torch.ops.profiler._record_function_enter.default", ["x"], "done")],
    "call_method": [node("call_method", [ref("input"), "__class__"], "done") | {"op": "call_method"}],
    "getitem": [node("_operator.getitem", [ref("input"), 0], "done")],
    "attrgetter": [node("_operator.attrgetter", ["__class__"], "done")],
    "methodcaller": [node("_operator.methodcaller", ["numpy"], "done")],
    "powers": [node("_operator.pow", [10, 10**9], "done")],
    "shifts": [node("_operator.lshift", [1, 10**12], "done")],
    "builtins.eval": [node("builtins.eval", [CODE], "done")],
    "os.system": [node("os.system", ["touch marker"], "done")],
    "torch.os.system": [node("torch.os.system", ["touch marker"], "done")],
    "subprocess": [node("subprocess.run", ["touch marker"], "done", shell=True)],
    "torch.load": [node("torch.load", ["marker"], "done", weights_only=False)],
    "torch.save": [node("torch.save", [ref("input"), "marker"], "done")],
    "save": [node(f"{ATEN}save.default", [ref("input"), "marker"], "done")],
    "from_file": [node(f"{ATEN}from_file.default", ["marker", True, 4], "done")],
    "_print": [node(f"{ATEN}_print.default", ["\x1b]0;owned\x07"], "done")],
    "warn": [node(f"{ATEN}warn.default", ["\x1b]0;owned\x07"], "done")],
    "manual_seed": [node(f"{ATEN}manual_seed.default", [0], "done")],
    "resize_": [node(f"{ATEN}resize_.default", [ref("input"), [9, 9]], "done")],
    "set_": [node(f"{ATEN}set_.source_Tensor", [ref("input"), ref("p_0_bias")], "done")],
    "as_strided": [node(f"{ATEN}as_strided.default", [ref("input"), [9, 9], [0, 0]], "done")],
    "empty": [node(f"{ATEN}empty.memory_format", [[3, 3]], "done")],
    "ones": [node(f"{ATEN}ones.default", [[45000, 45000]], "done")],
    "rand": [node(f"{ATEN}rand_like.default", [ref("input")], "done")],
    "bernoulli": [node(f"{ATEN}bernoulli.default", [ref("input")], "done")],
    "an out variant": [node(f"{ATEN}relu.out", [ref("input")], "done", out=ref("p_0_bias"))],
    "item": [node(f"{ATEN}item.default", [ref("p_0_bias")], "done")],
}


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_but_the_table_is_called(name, path, crowd, tmp_path, capfd):
    with_nodes(path, ATTACKS[name])
    with pytest.raises(ModelError, match=r"the operation \S+\. Save it again") as error:
        open_model(path, crowd.domain, crowd.rows)
    assert ATTACKS[name][0]["target"] in str(error.value)
    assert not (tmp_path / "marker").exists()
    assert capfd.readouterr() == ("", "")


def test_a_name_that_would_reach_the_terminal(path, crowd):
    with_nodes(path, [node("\x1b]0;owned\x07", [], "done")])
    with pytest.raises(ModelError, match=r"the operation \\x1b\]0;owned\\x07"):
        open_model(path, crowd.domain, crowd.rows)


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ({"as_custom_obj": {"name": "x", "class_fqn": "os.system"}}, "an argument of kind 'as_custom_obj'"),
        ({"as_operator": "os.system"}, "an argument of kind 'as_operator'"),
        ({"as_graph": {"name": "x", "graph": {}}}, "an argument of kind 'as_graph'"),
        ({"as_string_to_argument": {"x": {"as_int": 1}}}, "an argument of kind 'as_string_to_argument'"),
        ({"as_int": {"as_int": 1}}, "an argument of kind 'as_int'"),
        ({"as_int": True}, "an argument of kind 'as_int'"),
        ({"as_ints": [[1], "x"]}, "an argument of kind 'as_int'"),
        ({"as_string": ["x"]}, "an argument of kind 'as_string'"),
        ({"as_scalar_type": 7}, "an argument of kind 'as_scalar_type'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_arguments_are_tensors_and_plain_values(argument, says, path, crowd):
    with_nodes(path, [node(f"{ATEN}add.Tensor", [ref("input"), argument], "done")])
    with pytest.raises(ModelError, match=says):
        open_model(path, crowd.domain, crowd.rows)


@pytest.mark.parametrize("options", [{"memory_format": -1}, {"memory_format": 10**9}, {"dtype": 999}])
def test_types_and_layouts_are_not_numbers_of_the_file(options, path, crowd):
    target = f"{ATEN}clone.default" if "memory_format" in options else f"{ATEN}ones_like.default"
    with_nodes(path, [node(target, [ref("input")], "done", **options)])
    with pytest.raises(ModelError, match="with another type or layout"):
        open_model(path, crowd.domain, crowd.rows)


def test_a_copy_may_be_laid_out_anew(path, crowd):
    expected = open_model(path, crowd.domain, crowd.rows).model.scores(crowd.rows)
    turned = [
        node(f"{ATEN}t.default", [ref("linear_1")], "t"),
        node(f"{ATEN}clone.default", [ref("t")], "c", memory_format={"as_memory_format": 1}),
        node(f"{ATEN}view.default", [ref("c"), [-1]], "flat"),  # which only contiguous numbers allow
        node(f"{ATEN}view.default", [ref("flat"), [2, -1]], "back"),
        node(f"{ATEN}t.default", [ref("back")], "y"),
    ]
    with_nodes(path, turned, "y")
    assert torch.equal(open_model(path, crowd.domain, crowd.rows).model.scores(crowd.rows), expected)


def test_objects_among_the_inputs(path, crowd):
    def change(program):
        spec = {"custom_obj": {"arg": {"name": "x", "class_fqn": "os.system"}, "custom_obj_name": "x"}}
        program["graph_module"]["signature"]["input_specs"].append(spec)

    with_json(path, change)
    with pytest.raises(ModelError, match="an input of kind 'custom_obj'"):
        open_model(path, crowd.domain, crowd.rows)


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("dropout.default", [ref("input"), 0.5, True]),
        ("batch_norm.default", [ref("input"), *[{"as_none": True}] * 4, True, 0.1, 1e-5, False]),
        ("scaled_dot_product_attention.default", [*[ref("input")] * 3, {"as_none": True}, 0.5]),
    ],
)
def test_training_mode_is_refused(target, arguments, path, crowd):
    with_nodes(path, [node(ATEN + target, arguments, "done")])
    with pytest.raises(ModelError, match="is in training mode"):
        open_model(path, crowd.domain, crowd.rows)


def test_an_operation_that_learns_is_refused(path, crowd):
    """Instance normalisation by the rows at hand changes the averages that it is given."""
    none = {"as_none": True}
    learning = [
        node(f"{ATEN}unsqueeze.default", [ref("linear"), 2], "tall"),
        node(f"{ATEN}expand.default", [ref("tall"), [-1, 8, 3]], "long"),
        node(
            f"{ATEN}instance_norm.default",
            [ref("long"), none, none, ref("p_0_bias"), ref("p_0_bias"), True, 0.1, 1e-5, False],
            "y",
        ),
    ]
    with_nodes(path, learning, "y")
    with pytest.raises(ModelError, match="its step 'y' changes the weights"):
        open_model(path, crowd.domain, crowd.rows)


def test_weights_are_not_overwritten(path, crowd):
    with_nodes(path, [node(f"{ATEN}t.default", [ref("p_0_weight")], "t"), node(f"{ATEN}exp_.default", [ref("t")], "e")])
    with pytest.raises(ModelError, match="shares its numbers with a tensor that is overwritten"):
        open_model(path, crowd.domain, crowd.rows)


def test_the_table_names_calm_operations_of_tensors():
    """Nothing in it draws numbers, keeps state, writes to another argument than the first, or reads one's numbers."""
    for name, call in FUNCTIONS.items():
        if isinstance(call, torch._ops.OpOverload):
            assert torch.Tag.nondeterministic_seeded not in call.tags, name
            assert torch.Tag.data_dependent_output not in call.tags, name
            overwrites, plain = call._schema.name.endswith("_"), call._schema.name.endswith("__")
            written = [argument.is_write for argument in call._schema.arguments]
            assert written == [overwrites and not plain, *[False] * (len(written) - 1)], name
            kinds = {str(argument.type) for argument in call._schema.arguments}
            assert not any(word in kind for kind in kinds for word in ("Generator", "Storage", "Stream", "Any"))
    assert not any(
        word in name for name in FUNCTIONS for word in ("rand", "normal_", "file", "save", "resize", "empty")
    )


def test_sizes_are_numbers_with_a_bound():
    add, mul, mod = (FUNCTIONS[f"_operator.{name}"] for name in ("add", "mul", "mod"))
    assert (add(2, 3), mul(2, 3), mod(7, 3)) == (5, 6, 1)
    for numbers in ((10**9, 10**10), ([1], 3), ("x", 3), (True, 2), (torch.ones(2), 2)):
        with pytest.raises(Unsupported, match="'mul' of"):
            mul(*numbers)


def test_tensors_are_cut_into_few_pieces():
    long, empty = torch.zeros(10_000), torch.zeros(10_000, 0)
    chunk, split, unbind = (FUNCTIONS[ATEN + name] for name in ("chunk.default", "split.Tensor", "unbind.int"))
    assert len(unbind(torch.zeros(3, 2))) == len(chunk(torch.zeros(3), 3)) == len(split(torch.zeros(6), 2)) == 3
    for call, arguments in ((chunk, (long, 10_000)), (split, (long, 1)), (unbind, (empty,)), (unbind, (empty.T, 1))):
        with pytest.raises(TooLarge, match="10,000 pieces"):
            call(*arguments)


def test_weight_norm_is_that_of_torch():
    torch.manual_seed(0)
    v, g = torch.randn(5, 3), torch.randn(5, 1)
    torch.testing.assert_close(FUNCTIONS[f"{ATEN}_weight_norm.default"](v, g, 0), torch._weight_norm(v, g, 0))


@pytest.mark.parametrize(
    ("name", "arguments", "options", "expected"),
    [
        ("leaky_relu", [0.3], {}, nn.LeakyReLU(0.3)),
        ("gelu", [], {"approximate": "tanh"}, nn.GELU("tanh")),
        ("hardtanh", [-2.0], {"max_val": 0.5}, nn.Hardtanh(-2.0, 0.5)),
        ("elu", [1.5, 2.0], {}, None),  # with a scale, which the module does not have
        ("relu", [], {"inplace": True}, None),
        ("elu", [[1]], {}, None),
        ("exp", [], {}, None),
    ],
)
def test_activations_become_modules(name, arguments, options, expected):
    assert repr(activation(f"{ATEN}{name}.default", arguments, options)) == repr(expected)
