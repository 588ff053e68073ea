"""Opened models, and the requests for them: white box or black box, checked on rows, with decision and fingerprint."""

from __future__ import annotations

import hashlib
import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables import ColumnType
from neuronfair.domain.tables.dataset import limit_domain
from neuronfair.errors import ModelError, one_line, require
from neuronfair.formatting import join_words
from neuronfair.model.blackbox import BlackBox, uncounted
from neuronfair.model.decision import Decision, Scale
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.forest import Forest
from neuronfair.model.formats import ModelFile
from neuronfair.model.network import Network
from neuronfair.model.weights import fingerprint

MAX_TRIAL_ROWS = 256  # rows of the table that a model is tried on before it is used
TOLERANCE = 1e-4  # of scores that should be the same

FINGERPRINT_DIGITS = 6  # of the scores in the fingerprint of a function
REGRESSION_RANGE = (-0.5, 1.5)  # the scores of a regression on 0 and 1 lie between these
SMALL_EFFECT = 0.2  # of the spread of a regression's scores (Cohen 1988): by default the same decision
QUARTILE_DEVIATIONS = 1.349  # standard deviations between the quartiles of a normal distribution
MAX_STRAY_SHARE = 0.05  # of the scores may lie outside: random rows can be unlike those that it was fitted to


@dataclass(frozen=True)
class OpenRequest(ModelFile):
    """What `wrap_model` opens. Each reader takes a request and ends with `make_white_box` or `make_black_box`."""

    domain: TableDomain
    rows: Tensor
    weights: Path | None = None
    device: str = "cpu"
    decision: Decision | None = None
    preprocess: Callable[[Any], Any] | None = None  # from a DataFrame to the inputs of the model
    unused: tuple[str, ...] = ()  # attributes with encode "none", which this domain does not have
    types: Mapping[str, ColumnType] = field(default_factory=dict)  # of the table's columns
    inferred: bool = False  # whether the domain was inferred, so that its encoding is not declared

    @cached_property
    def trial_rows(self) -> Tensor:
        """Rows of the table, evenly spread, random valid rows, and some rows with values out of bounds.

        One more row for each number that may be empty has an empty cell there.
        """
        rows, domain = self.rows.cpu(), self.domain.to("cpu")
        spread_rows = torch.linspace(0, len(rows) - 1, min(MAX_TRIAL_ROWS, len(rows))).long()
        outside = ((rows < 0) | (rows >= domain.sizes)).any(1)
        empty_columns = [column for column, attribute in enumerate(domain.attributes) if attribute.empty is not None]
        empty = self.random_rows[:1].repeat(len(empty_columns), 1)
        empty[range(len(empty_columns)), empty_columns] = domain.sizes[empty_columns] - 1
        empty, outer = empty[domain.valid(empty)], rows[outside][:MAX_TRIAL_ROWS]
        return torch.cat([rows[spread_rows], self.random_rows, empty, outer])

    @cached_property
    def random_rows(self) -> Tensor:
        """Random valid rows, the same for every table."""
        return self.domain.to("cpu").sample(MAX_TRIAL_ROWS, torch.Generator().manual_seed(0))

    def width_text(self) -> str:
        """Return how many numbers the domain gives to a network, and why so many."""
        domain, width = self.domain, TableEncoding.of(self.domain).width
        blocks = [f"{a.name} {a.size}" for a in domain.attributes if a.encode == "onehot"]
        parts = f" ({', '.join(blocks[:8])}{', …' if len(blocks) > 8 else ''} one-hot, the others 1)" if blocks else ""
        text = f"The domain '{domain.name}' gives {width} numbers a row{parts}"
        return (
            f"{text}{self.without_sensitive(lambda others: TableEncoding(others).width)}; change encode = … in its file"
        )

    def without_sensitive(self, count: Callable[[Sequence[Attribute]], int]) -> str:
        """Return the end of a sentence: the same count without the sensitive attributes."""
        if self.unused:
            return f" without {join_words(self.unused)}"
        others = [attribute for attribute in self.domain.attributes if attribute.name not in self.domain.sensitive]
        return f", and {count(others)} without {join_words(self.domain.sensitive)}" if others else ""


@dataclass(frozen=True)
class ModelInputs:
    """How rows of codes become the inputs of a model, or its scores, and original cells as well where they can.

    This is the one way from codes to a model that computes with its own inputs: tables, arrays or tensors. Only a
    network that is differentiated by its inputs reads codes by a `TableEncoding`, which also leads gradients back.

    `of_frame` takes a DataFrame of original cells with the names of attributes. `of_numbers` takes the numbers that the
    domain declares, where these are the inputs. `note` tells the user about the inputs. `by_position` says that columns
    are matched by their order alone (None: not yet known). Tensors are passed by `names`, or in their order where there
    are none. `program` names what makes the inputs, if that may be any program.
    """

    of_rows: Callable[[Tensor], Any]
    of_frame: Callable[[Any], Any] | None = None
    of_numbers: Callable[[np.ndarray], Any] | None = None
    note: str = ""
    by_position: bool | None = False
    names: tuple[str, ...] = ()
    program: str | None = None

    def then(self, function: Callable[[Any], Any], **changes: Any) -> ModelInputs:
        """Return these inputs after a function, such as the scores of a model."""

        def after(make_inputs: Callable[[Any], Any]) -> Callable[[Any], Any]:
            return lambda source: function(make_inputs(source))

        of_frame, of_numbers = self.of_frame and after(self.of_frame), self.of_numbers and after(self.of_numbers)
        return replace(self, of_rows=after(self.of_rows), of_frame=of_frame, of_numbers=of_numbers, **changes)


@dataclass(frozen=True)
class OpenedModel:
    """A model ready for an audit, from any framework.

    `decision` says which scores lead to different decisions. `note` tells the user: white box, or black box and why.
    `fingerprint` is that of the weights or of the file; `module` is the torch module of a white box. `declared` says
    that its inputs are the numbers that the domain declares. `scores_of_frame` computes the scores of a DataFrame of
    original cells, whose columns have the attributes' names, with the classes in the domain's order; None for a model
    that reads no table.
    """

    model: Network | BlackBox
    decision: Decision
    source: str
    kind: str
    note: str
    fingerprint: str
    module: nn.Module | None
    declared: bool = False
    scale: Scale | None = None  # of its scores, where the kind of model fixes it; else it is inferred from them
    original: Callable[[Tensor], Any] | None = None  # computes scores with the model that this one was converted from
    scores_of_frame: ScoresOfFrame | None = None
    by_position: bool = False  # whether columns are matched by position, since its inputs have no names
    unassessed: str = ""  # why its decisions cannot be compared with the labels of the table

    @property
    def white_box(self) -> bool:
        """Whether its neurons can be read and its scores differentiated."""
        return isinstance(self.model, Network)

    @property
    def trees(self) -> Callable[[], Forest] | None:
        """Makes the trees of a tree ensemble over codes; None for any other model."""
        return self.model.trees if isinstance(self.model, BlackBox) else None


ScoresOfFrame = Callable[[Any], np.ndarray]  # from a DataFrame of original cells to scores, (n, outputs)


def make_white_box(
    request: OpenRequest,
    kind: str,
    module: nn.Module,
    *,
    encoding: TableEncoding | None = None,
    note: str = "",
    probability: bool = False,
    hidden: bool = True,
) -> OpenedModel:
    """Return a torch module ready for an audit; one without known hidden activations becomes a black box.

    `encoding` is how it reads rows; by default as the domain file declares. `probability` says that a single score is
    a probability, even without a final sigmoid. A linear model has no `hidden` layers.
    """
    encoding = encoding or TableEncoding.of(request.domain)
    encoding = TableEncoding(encoding.attributes, torch.device(request.device))
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise request.error(f"the weights '{name}' hold NaN or infinite numbers, so nothing can be computed")
    try:
        network = Network(module, encoding, layers=None if hidden else ())
    except ModelError as error:
        return _open_without_layers(request, kind, module, encoding, error, "no hidden activation was found in it")
    scores = _compute_trial_scores(request, network)
    if network.runner is not network.module:  # a traced copy
        untraced = _compute_trial_scores(request, Network(module, encoding, layers=()))
        if not torch.allclose(scores, untraced, rtol=TOLERANCE, atol=TOLERANCE):
            reason = "its traced copy gives other scores"
            return _open_without_layers(request, kind, module, encoding, ModelError(reason), reason)
    decision, remark = _choose_decision(request, scores, probability or network.ends_in("Sigmoid"))
    decision.check(network.outputs)
    layers = "1 hidden layer" if len(network.layers) == 1 else f"{len(network.layers)} hidden layers"
    text = f"White box: {layers} with {sum(network.neurons.values())} neurons"
    if not hidden:
        text = "White box: a linear model, a network without hidden layers"
    note = "; ".join(filter(None, (text, note, remark))) + "."
    return OpenedModel(network, decision, request.source, kind, note, fingerprint(module), module)


def _open_without_layers(
    request: OpenRequest, kind: str, module: nn.Module, encoding: TableEncoding, error: ModelError, reason: str
) -> OpenedModel:
    try:
        network = Network(module, encoding, layers=()).double()
    except ModelError as refusal:
        # The module itself may have refused the rows.
        misfit = f". {request.width_text()}" if refusal.__cause__ is not None else ""
        raise request.error(f"{one_line(refusal)}{misfit}") from error
    digest, probability = fingerprint(module), network.ends_in("Sigmoid")
    declared = encoding.attributes == request.domain.attributes
    scores = ModelInputs(
        lambda rows: network.scores(rows).cpu(), of_numbers=network.scores_of_inputs if declared else None
    )
    return make_black_box(request, kind, scores, reason, probability=probability, digest=digest)


def make_black_box(
    request: OpenRequest,
    kind: str,
    scores_of: ModelInputs,
    reason: str,
    *,
    probability: bool | None = None,
    digest: str | None = None,
) -> OpenedModel:
    """Return the scores of a model ready for an audit.

    `probability` says whether a single score is a probability; by default it is if all lie within 0 and 1.
    """
    try:
        model = BlackBox(scores_of.of_rows, request.domain.to(request.device))
    except ModelError as error:
        raise request.error(one_line(error)) from error
    model.inputs = scores_of.of_numbers
    scores = _compute_trial_scores(request, model)
    if probability is None:
        probability = bool(((scores >= 0) & (scores <= 1)).all())
    decision, remark = _choose_decision(request, scores, probability)
    decision.check(model.outputs)
    note = f"Black box, searched without gradients: {'; '.join(filter(None, (reason, remark)))}."
    result = OpenedModel(model, decision, request.source, kind, note, digest or request.digest, None)
    return replace(result, declared=scores_of.of_numbers is not None, scores_of_frame=scores_of.of_frame)


def reproduces_scores(request: OpenRequest, converted: OpenedModel, predict: Callable[[Tensor], Any]) -> bool:
    """Return whether a converted model gives the scores of its source, `predict`, on the tried rows.

    A source that fails cannot be compared, so its scores are not reproduced.
    """
    rows = request.trial_rows.to(request.device)
    with uncounted(converted.model):
        scores = converted.model.scores(rows).double()
    try:
        source_scores = BlackBox(predict, converted.model.encoding).scores(rows)
    except ModelError:
        return False
    return scores.shape == source_scores.shape and torch.allclose(scores, source_scores, rtol=TOLERANCE, atol=TOLERANCE)


def compare_with_source(
    request: OpenRequest, converted: OpenedModel, source: ModelInputs, digest: str = ""
) -> OpenedModel:
    """Return a converted model with its source; if their scores differ, the source as a black box."""
    if reproduces_scores(request, converted, source.of_rows):
        return replace(converted, original=source.of_rows)
    return make_black_box(request, converted.kind, source, "its scores could not be reproduced in torch", digest=digest)


def _choose_decision(request: OpenRequest, scores: Tensor, probability: bool) -> tuple[Decision, str]:
    """Return how scores become decisions, with a remark where a tolerance was chosen for a regression.

    The user's choice comes first. By default it is the class of the largest score, a threshold for a single score, or a
    tolerance for a number without a fixed range.
    """
    if request.decision is not None:
        return request.decision, ""
    if scores.shape[1] > 1:
        return Decision(), ""
    target = request.domain.target
    outside = ((scores < REGRESSION_RANGE[0]) | (scores > REGRESSION_RANGE[1])).double().mean().item()
    if (target is None or target.classes) and not (probability and outside > MAX_STRAY_SHARE):
        return Decision("threshold", 0.5 if probability else 0.0), ""
    last = scores[: min(MAX_TRIAL_ROWS, len(request.rows)), -1].double()
    low, high = torch.quantile(last, torch.tensor([0.25, 0.75], dtype=torch.float64)).tolist()
    # Quartiles, since a few very large scores would make all other differences small.
    has_spread = high > low
    spread = (high - low) / QUARTILE_DEVIATIONS if has_spread else last.std(correction=0).item()
    spread_name = "robust standard deviation (interquartile range / 1.349)" if has_spread else "standard deviation"
    tolerance = float(f"{SMALL_EFFECT * spread:.2g}")
    return Decision("tolerance", tolerance), (
        f"a regression: scores that differ by more than {tolerance:g}, a fifth of their {spread_name} on records of "
        "the data set, count as another decision (--decision tolerance=… sets another)"
    )


def _compute_trial_scores(request: OpenRequest, model: Network | BlackBox) -> Tensor:
    """Return the scores of the tried rows; refuse a model that fails, or gives other scores in another batch."""
    rows = request.trial_rows.to(request.device)
    try:
        with uncounted(model):
            scores = model.scores(rows)
            split_scores = torch.cat([model.scores(part) for part in (rows[:1], rows[1:])])
    except ModelError as error:
        raise request.error(one_line(error)) from error
    if not bool(scores.isfinite().all()):
        raise request.error("its scores are NaN or infinite for some rows of the domain")
    if not torch.allclose(scores, split_scores, rtol=TOLERANCE, atol=TOLERANCE):
        raise request.error(
            "its scores change from call to call or with the other rows of a batch. Save it in evaluation mode "
            "(without dropout, and with fixed batch statistics)"
        )
    return scores


def restrict_to_inputs(request: OpenRequest) -> OpenRequest:
    """Return the same request for the attributes that are inputs of the model, without those with encode "none"."""
    domain, columns = request.domain, _list_input_columns(request.domain)
    if len(columns) == len(domain.attributes):
        return request
    varied = [domain.names[column] for column in columns if domain.attributes[column].size > 1]
    if not varied:
        raise request.error("every attribute that it reads has one value only")
    # A domain needs sensitive attributes; readers do not use them.
    inputs = limit_domain(domain.with_sensitive(varied[0]), [domain.names[column] for column in columns])
    unused = tuple(name for name in domain.names if name not in inputs.names)
    return replace(request, domain=inputs, rows=request.rows[:, columns], unused=unused)


def extend_to_domain(request: OpenRequest, input_model: OpenedModel) -> OpenedModel:
    """Return a model of the inputs alone, opened for `restrict_to_inputs`, as a model of all attributes."""
    domain, columns = request.domain.to(request.device), _list_input_columns(request.domain)
    model = input_model.model
    if len(columns) == len(domain.attributes):
        return input_model
    unused = [name for column, name in enumerate(domain.names) if column not in columns]
    input_model = replace(input_model, note=f"{input_model.note} It does not get {join_words(unused)}.")
    if isinstance(model, Network):
        assert isinstance(model.encoding, TableEncoding)
        attribute_of = dict(zip(columns, model.encoding.attributes, strict=True))
        attributes = [attribute_of.get(column, attribute) for column, attribute in enumerate(domain.attributes)]
        encoding = TableEncoding(attributes, model.encoding.device)
        network = Network(model.module, encoding, layers=None if model.layers else ())
        return replace(input_model, model=network)
    predict, trees = model.predict, model.trees
    box = BlackBox(lambda rows: predict(rows[:, columns]), domain)
    box.inputs = model.inputs  # the others have no numbers
    if trees is not None:
        box.trees = cache(lambda: _extend_forest(trees(), domain, columns))
    return replace(input_model, model=box)


def _extend_forest(forest: Forest, domain: TableDomain, columns: list[int]) -> Forest:
    """Return trees over the given columns as trees over all: the codes of each other column are one cell."""
    cells_by_column = dict(zip(columns, forest.cells, strict=True))
    single_cells: list[Tensor] = [torch.zeros(a.size, dtype=torch.int64) for a in domain.attributes]
    attribute = torch.tensor(columns)[forest.attribute.clamp(min=0)]
    return replace(
        forest,
        attribute=torch.where(forest.attribute < 0, -1, attribute),
        cells=tuple(cells_by_column.get(column, cell) for column, cell in enumerate(single_cells)),
    )


def _list_input_columns(domain: TableDomain) -> list[int]:
    return [column for column, attribute in enumerate(domain.attributes) if attribute.is_input]


def digest_estimator(estimator: Any) -> str | None:
    """Return the fingerprint of a fitted model; None if it cannot be pickled, because of a lock or a lambda."""
    try:
        content: str = require("joblib", "sklearn").hash(estimator)
    except (pickle.PicklingError, TypeError, AttributeError):
        return None
    return hashlib.sha256(content.encode()).hexdigest()


def fingerprint_by_scores(request: OpenRequest, black_box: OpenedModel, function: Any) -> OpenedModel:
    """Return an opened function whose fingerprint covers its source code and its scores.

    The code alone is not enough: it may read a file or call other functions, which can change. The scores are those of
    random rows that are the same for every table, in a batch of their own.
    """
    with uncounted(black_box.model):
        scores = black_box.model.scores(request.random_rows.to(request.device)).cpu().numpy()
    score_bytes = (scores.round(FINGERPRINT_DIGITS) + 0.0).tobytes()  # 0.0 turns -0.0 into 0.0
    return replace(black_box, fingerprint=hashlib.sha256(read_source_code(function).encode() + score_bytes).hexdigest())


def add_preprocess_fingerprint(model: OpenedModel, preprocess: Callable[[Any], Any] | None) -> OpenedModel:
    """Return a model whose fingerprint also covers the code of its preprocessing."""
    if preprocess is None:
        return model
    text = f"{model.fingerprint}{read_source_code(preprocess)}"
    return replace(model, fingerprint=hashlib.sha256(text.encode()).hexdigest())


def read_source_code(function: Any) -> str:
    """Return the source code of a function, or the name of its type where there is none to read."""
    try:
        return inspect.getsource(function)
    except (TypeError, OSError):
        return repr(type(function))
