"""A request to open a model, what comes back, and the checks that every format shares."""

from __future__ import annotations

import hashlib
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
from neuronfair.domain.tables.dataset import limited
from neuronfair.domain.tables.files import ColumnType
from neuronfair.errors import ModelError, one_line
from neuronfair.formatting import listed
from neuronfair.limits import read_bytes
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Decision, Scale
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.forest import Forest
from neuronfair.model.network import Network
from neuronfair.model.weights import fingerprint

TRIED = 256  # rows of the table that a model is tried on before it is used
TOLERANCE = 1e-4  # how far two answers to one question may lie apart
SHARES = (-0.5, 1.5)  # where the answers of a regression on 0 and 1 lie
FIFTH = 0.2  # of the spread of a regression's answers: a small effect (Cohen 1988), and by default what still is alike
NORMAL = 1.349  # standard deviations between the quartiles of a normal distribution
STRAY = 0.05  # but for this part of them: random people can be unlike all those it was fitted to


@dataclass(frozen=True)
class Opened:
    """A model made ready for an audit, whatever it came from.

    `decision` is what counts as another decision for the model's outputs. `note` is a sentence for people: white box,
    or black box and why. `fingerprint` is that of the weights or of the file; `module` the torch module of a white box.
    `inputs` gives the scores of the numbers that the domain's encoding makes of rows, (n, width); None for a model that
    is given the table itself. `scores_of_frame` gives the scores of a DataFrame of original cells, in the order of the
    domain's classes as `model.scores` does: its columns have the attributes' names, and others are ignored. None for a
    model that is not given a table.
    """

    model: Network | BlackBox
    decision: Decision
    source: str
    kind: str
    note: str
    fingerprint: str
    module: nn.Module | None
    inputs: Callable[[np.ndarray], Any] | None = None
    trees: Callable[[], Forest] | None = None  # makes the trees of a black box that has some
    refit: Refit | None = None  # fits the model anew to rows and labels, in its own framework
    save: Callable[[nn.Module | None, Path], None] | None = None  # writes it, with this module, in its own format
    unlock: Callable[[nn.Module], None] | None = None  # says which parameters of the module may be trained
    scale: Scale | None = None  # what its scores are, where its kind tells; else they are judged by themselves
    original: Callable[[Tensor], Any] | None = None  # asks what a rebuilt model was made from for the scores of rows
    scores_of_frame: ScoresOfFrame | None = None
    by_position: bool = False  # whether columns were matched by their order alone, since its inputs have no names
    unassessed: str = ""  # why its decisions cannot be compared with the labels of the table

    @property
    def white_box(self) -> bool:
        """Whether its neurons can be read and its scores differentiated."""
        return isinstance(self.model, Network)

    def with_trees(self, make: Callable[[], Forest]) -> Opened:
        """Return a black box that has trees, which are made once, when somebody asks for them."""
        assert isinstance(self.model, BlackBox)
        self.model.trees = once = cache(make)
        return replace(self, trees=once)

    def with_module(self, module: nn.Module) -> Opened:
        """Return the same model with another module in the place of its own, read in the same way."""
        assert isinstance(self.model, Network)
        network = Network(module, self.model.encoding, layers=None if self.model.layers else ())
        return replace(
            self,
            model=network,
            module=module,
            fingerprint=fingerprint(module),
            inputs=None,
            scores_of_frame=None,
            original=None,
        )


ScoresOfFrame = Callable[[Any], np.ndarray]  # from a DataFrame of original cells to scores, (n, outputs)
Refit = Callable[[Tensor, Tensor, int], Opened]  # rows, labels, and a seed


@dataclass(frozen=True)
class ModelFile:
    """The file of a model, or `package.module:name`, and whether it may run a program when opened."""

    source: str
    trust_pickle: bool = field(default=False, kw_only=True)

    @property
    def path(self) -> Path:
        """The source as a file."""
        return Path(self.source)

    @cached_property
    def content(self) -> bytes:
        """The content of the file, read once, so that what was checked is what is opened."""
        return read_bytes(self.path)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the file."""
        return hashlib.sha256(self.content).hexdigest()

    def error(self, what: str) -> ModelError:
        """Return an error that begins with the name of the source."""
        return ModelError(f"{self.source}: {what}")


@dataclass(frozen=True)
class Request(ModelFile):
    """What was asked of `open_model`; the readers end with `white_box` or `black_box`."""

    domain: TableDomain
    rows: Tensor
    weights: Path | None = None
    device: str = "cpu"
    decision: Decision | None = None
    preprocess: Callable[[Any], Any] | None = None  # from a DataFrame to the inputs of the model
    outside: tuple[str, ...] = ()  # attributes that the model is not given, and this domain does not have
    types: Mapping[str, ColumnType] = field(default_factory=dict)  # of the table's columns, where it has some
    inferred: bool = False  # whether the domain was read off the table, so that nobody has declared an encoding

    @cached_property
    def tried(self) -> Tensor:
        """Some rows of the table, evenly spread, as many random valid ones, and some that lie outside the bounds.

        There is one with an empty cell for each number that may be empty, however seldom.
        """
        rows, domain = self.rows.cpu(), self.domain.to("cpu")
        spread = torch.linspace(0, len(rows) - 1, min(TRIED, len(rows))).long()
        outside = ((rows < 0) | (rows >= domain.sizes)).any(1)
        places = [place for place, attribute in enumerate(domain.attributes) if attribute.empty is not None]
        empty = self.drawn[:1].repeat(len(places), 1)
        empty[range(len(places)), places] = domain.sizes[places] - 1
        return torch.cat([rows[spread], self.drawn, empty[domain.valid(empty)], rows[outside][:TRIED]])

    @cached_property
    def drawn(self) -> Tensor:
        """Random valid rows, the same for every table."""
        return self.domain.to("cpu").sample(TRIED, torch.Generator().manual_seed(0))

    def white_box(
        self,
        kind: str,
        module: nn.Module,
        *,
        encoding: TableEncoding | None = None,
        note: str = "",
        probability: bool = False,
        hidden: bool = True,
    ) -> Opened:
        """Return a torch module ready for an audit; one whose hidden activations are not found becomes a black box.

        `encoding` is how it reads rows; by default as the domain file declares. `probability` says that a single score
        is one, even if no sigmoid stands at the end. A linear model has nothing `hidden`.
        """
        declared = encoding is None or encoding.attributes == self.domain.attributes
        encoding = encoding or TableEncoding.of(self.domain)
        encoding = TableEncoding(encoding.attributes, torch.device(self.device))
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise self.error(f"the weights '{name}' hold NaN or infinite numbers, so nothing can be computed")
        if kind != "torch":  # a module of ours, and not the user's own
            module.eval()
        try:
            network = Network(module, encoding, layers=None if hidden else ())
        except ModelError as error:
            found = self._without_layers(kind, module, encoding, error)
            return found if declared else replace(found, inputs=None)
        scores = self._steady(network)
        decision, said = self._decision(scores, probability or network.ends_in_sigmoid())
        decision.check(network.outputs)
        layers = "1 hidden layer" if len(network.layers) == 1 else f"{len(network.layers)} hidden layers"
        text = f"White box: {layers} with {sum(network.neurons.values())} neurons"
        if not hidden:
            text = "White box: a linear model, a network without hidden layers to look into"
        note = "; ".join(filter(None, (text, note, said))) + "."
        inputs = network.answers if declared else None
        return Opened(network, decision, self.source, kind, note, fingerprint(module), module, inputs)

    def _without_layers(self, kind: str, module: nn.Module, encoding: TableEncoding, error: ModelError) -> Opened:
        try:
            network = Network(module, encoding, layers=()).double()
        except ModelError as worse:
            misfit = f". {self.widths()}" if worse.__cause__ is not None else ""  # its own code refused the rows
            raise self.error(f"{one_line(worse)}{misfit}") from error
        why, probability = "no hidden activation was found in it", network.ends_in_sigmoid()
        found = self.black_box(
            kind,
            lambda rows: network.scores(rows).cpu(),
            why,
            probability=probability,
            print_of=fingerprint(module),
        )
        return replace(found, inputs=network.answers)

    def black_box(
        self,
        kind: str,
        ask: Callable[[Tensor], Any],
        why: str,
        *,
        probability: bool | None = None,
        print_of: str | None = None,
    ) -> Opened:
        """Return a function of rows ready for an audit.

        `probability` says whether a single score is one; by default it is taken for one if it lies within 0 and 1.
        """
        try:
            model = BlackBox(ask, self.domain.to(self.device))
        except ModelError as error:
            raise self.error(one_line(error)) from error
        scores = self._steady(model)
        if probability is None:
            probability = bool(((scores >= 0) & (scores <= 1)).all())
        decision, said = self._decision(scores, probability)
        decision.check(model.outputs)
        note = f"Black box, searched without gradients: {'; '.join(filter(None, (why, said)))}."
        return Opened(model, decision, self.source, kind, note, print_of or self.digest, None)

    def reproduced(self, opened: Opened, ask: Callable[[Tensor], Any]) -> bool:
        """Return whether a converted model gives the scores of its source, `ask`, on the tried rows.

        A source that does not answer cannot be compared, so it is not reproduced.
        """
        rows = self.tried.to(self.device)
        ours = opened.model.scores(rows).double()
        opened.model.rows_forward = 0
        try:
            theirs = BlackBox(ask, opened.model.encoding).scores(rows)
        except ModelError:
            return False
        return ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)

    def widths(self) -> str:
        """Return how many numbers the domain gives to a network, and why so many."""
        domain, width = self.domain, TableEncoding.of(self.domain).width
        blocks = [f"{a.name} {a.size}" for a in domain.attributes if a.encode == "onehot"]
        parts = f" ({', '.join(blocks[:8])}{', …' if len(blocks) > 8 else ''} one-hot, the others 1)" if blocks else ""
        said = f"The domain '{domain.name}' gives {width} numbers a row{parts}"
        return f"{said}{self.fewer(lambda others: TableEncoding(others).width)}; change encode = … in its file"

    def fewer(self, count: Callable[[Sequence[Attribute]], int]) -> str:
        """Return how many there are without the sensitive attributes, as a part of a sentence."""
        if self.outside:
            return f" without {listed(self.outside)}"
        others = [attribute for attribute in self.domain.attributes if attribute.name not in self.domain.sensitive]
        return f", and {count(others)} without {listed(self.domain.sensitive)}" if others else ""

    def _decision(self, scores: Tensor, probability: bool) -> tuple[Decision, str]:
        """Return what counts as another decision, and a remark on it where it was chosen here for a regression.

        If the user has not said it, it is the largest score, a threshold, or a tolerance for numbers of any size.
        """
        if self.decision is not None:
            return self.decision, ""
        if scores.shape[1] > 1:
            return Decision(), ""
        target = self.domain.target
        outside = ((scores < SHARES[0]) | (scores > SHARES[1])).double().mean().item()
        if (target is None or target.classes) and not (probability and outside > STRAY):
            return Decision("threshold", 0.5 if probability else 0.0), ""
        answers = scores[: min(TRIED, len(self.rows))].double()
        first, last = torch.quantile(answers[:, -1], torch.tensor([0.25, 0.75], dtype=torch.float64)).tolist()
        # Quartiles, since a few very large answers would make everything else alike.
        robust = last > first
        spread = (last - first) / NORMAL if robust else answers.std(correction=0).item()
        of = "robust standard deviation (interquartile range / 1.349)" if robust else "standard deviation"
        tolerance = float(f"{FIFTH * spread:.2g}")
        return Decision("tolerance", tolerance), (
            f"a regression: answers that differ by more than {tolerance:g}, a fifth of their {of} on records of the "
            "data set, count as another decision (--decision tolerance=… sets another)"
        )

    def _steady(self, model: Network | BlackBox) -> Tensor:
        """Return the scores of the tried rows; refuse a model that gives none, or others when it is asked again."""
        rows = self.tried.to(self.device)
        try:
            scores = model.scores(rows)
            again = torch.cat([model.scores(part) for part in (rows[:1], rows[1:])])
        except ModelError as error:
            raise self.error(one_line(error)) from error
        model.rows_forward = 0
        if not bool(scores.isfinite().all()):
            raise self.error("its scores are NaN or infinite for some rows of the domain")
        if not torch.allclose(scores, again, rtol=TOLERANCE, atol=TOLERANCE):
            raise self.error(
                "its answers change from call to call or with the other rows of a batch. Save it in evaluation mode "
                "(without dropout, and with fixed batch statistics)"
            )
        return scores


def of_inputs(request: Request) -> Request:
    """Return what is asked of a reader: the same, about the attributes that the model is given."""
    domain, kept = request.domain, _given(request.domain)
    if len(kept) == len(domain.attributes):
        return request
    varied = [domain.names[column] for column in kept if domain.attributes[column].size > 1]
    if not varied:
        raise request.error("every attribute that it would be given has one value only")
    # A domain has sensitive attributes; readers do not ask which.
    inputs = limited(domain.with_sensitive(varied[0]), [domain.names[column] for column in kept])
    outside = tuple(name for name in domain.names if name not in inputs.names)
    return replace(request, domain=inputs, rows=request.rows[:, kept], outside=outside)


def with_outside(request: Request, opened: Opened) -> Opened:
    """Return what a reader has opened for `of_inputs(request)` as a model of the rows of the whole domain."""
    domain, kept = request.domain.to(request.device), _given(request.domain)
    model = opened.model
    if len(kept) == len(domain.attributes):
        return opened
    outside = [name for column, name in enumerate(domain.names) if column not in kept]
    opened = replace(opened, note=f"{opened.note} It is not given {listed(outside)}.")
    refit = opened.refit
    if refit is not None:
        again = refit
        refit = lambda rows, labels, seed: with_outside(request, again(rows[:, kept], labels, seed))  # noqa: E731
    if isinstance(model, Network):
        assert isinstance(model.encoding, TableEncoding)
        read = dict(zip(kept, model.encoding.attributes, strict=True))
        attributes = [read.get(column, attribute) for column, attribute in enumerate(domain.attributes)]
        encoding = TableEncoding(attributes, model.encoding.device)
        network = Network(model.module, encoding, layers=None if model.layers else ())
        return replace(opened, model=network, refit=refit)
    ask, trees = model.ask, opened.trees
    found = replace(opened, model=BlackBox(lambda rows: ask(rows[:, kept]), domain), refit=refit)
    return found if trees is None else found.with_trees(lambda: _widened(trees(), domain, kept))


def _given(domain: TableDomain) -> list[int]:
    return [column for column, attribute in enumerate(domain.attributes) if attribute.given]


def _widened(forest: Forest, domain: TableDomain, kept: list[int]) -> Forest:
    """Return trees over the columns that are given as trees over all: of the others, all codes are one cell."""
    own = dict(zip(kept, forest.cells, strict=True))
    alike: list[Tensor] = [torch.zeros(a.size, dtype=torch.int64) for a in domain.attributes]
    place = torch.tensor(kept)[forest.attribute.clamp(min=0)]
    return replace(
        forest,
        attribute=torch.where(forest.attribute < 0, -1, place),
        cells=tuple(own.get(column, cell) for column, cell in enumerate(alike)),
    )
