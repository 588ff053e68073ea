"""Networks of several inputs, or of codes for embeddings: white boxes behind a layer that makes their inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from neuronfair.errors import ModelError, NeuronFairError, one_line
from neuronfair.limits import TooLarge, check_size
from neuronfair.model.blackbox import as_scores
from neuronfair.model.encoding import ROWS_PER_PASS, TableEncoding
from neuronfair.model.layers import ACTIVATIONS, evaluating, with_functions_as_modules
from neuronfair.model.open.input_layouts import (
    REMEDY,
    InputLayout,
    NetworkInput,
    Raw,
    Unmatched,
    arguments,
    by_domain,
    by_preprocess,
    guesses,
    matched,
)
from neuronfair.model.open.request import TOLERANCE, Opened, Request
from neuronfair.model.open.sklearn.preprocessing import Columns, NotLinear, linear_layer
from neuronfair.model.weights import fingerprint

PART = 4096  # rows that are asked about at once while the layer is found


class Crossings(TorchFunctionMode):
    """Within it, `see` is shown each tensor that is computed from whole numbers of the rows, and may replace it.

    A tensor of the rows is plain as long as no weight has met it: a column that is cast to whole numbers counts.
    """

    def __init__(self, inputs: Sequence[Tensor], see: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._see = see
        self._plain = {id(x): (x, True) for x in inputs}  # tensors are kept, lest another gets the number of one

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute as ever, and look at what came of it."""
        result = func(*args, **(kwargs or {}))
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        known = [self._plain[id(x)] for x in given if id(x) in self._plain]
        if not known:
            return result
        plain = all(is_plain for _, is_plain in known)
        if plain and isinstance(result, Tensor) and result.is_floating_point():
            if not any(x.is_floating_point() for x, _ in known):
                result, plain = self._see(result), False
            else:
                plain = not any(x.is_floating_point() and id(x) not in self._plain for x in given)
        for x in tree_leaves(result):
            if isinstance(x, Tensor):
                self._plain[id(x)] = (x, plain)
        return result


@dataclass(frozen=True)
class EmbeddingSite:
    """A place where whole numbers become others: which dimension holds the rows, and how many numbers a row has."""

    dim: int
    width: int

    def of_rows(self, result: Tensor, rows: int) -> Tensor:
        """Return the numbers of each row: (n, width)."""
        return result.movedim(self.dim, 0).reshape(rows, self.width)

    def like(self, numbers: Tensor, result: Tensor) -> Tensor:
        """Return numbers of rows in the shape of the result."""
        return numbers.reshape(result.movedim(self.dim, 0).shape).movedim(0, self.dim)


class InputLayer(nn.Module):
    """A network behind the layer that makes its inputs, which are of these shapes and types."""

    def __init__(
        self,
        inner: nn.Module,
        feed: InputLayout,
        inputs: Sequence[Tensor],
        sites: Sequence[EmbeddingSite],
        made: Columns,
    ) -> None:
        super().__init__()
        self._call, self._sites = feed.call, tuple(sites)
        self._kinds = [(tuple(x.shape[1:]), x.dtype) for x in inputs]
        self._widths = [math.prod(shape) for shape, _ in self._kinds]
        total = sum(self._widths)
        self.inner, self.inputs = inner, made.part(0, total)
        self.looked_up = made.part(total, made.out_features) if sites else None

    def forward(self, x: Tensor) -> Any:
        """Return what the network computes for encoded rows."""
        parts = self.inputs(x).split(self._widths, 1)
        inputs = [
            part.reshape(x.shape[0], *shape)
            if dtype.is_floating_point
            else part.detach().round().to(dtype).reshape(x.shape[0], *shape)
            for part, (shape, dtype) in zip(parts, self._kinds, strict=True)
        ]
        if self.looked_up is None or not (torch.is_grad_enabled() and x.requires_grad):
            return self._call(self.inner, inputs)
        slopes = self.looked_up(x)
        slopes = slopes - slopes.detach()  # zero, with a gradient
        waiting = zip(self._sites, slopes.split([site.width for site in self._sites], 1), strict=True)

        def see(result: Tensor) -> Tensor:
            site, slope = next(waiting)
            return result + site.like(slope, result).to(result.dtype)

        with Crossings(inputs, see):
            return self._call(self.inner, inputs)


class Direct:
    """A network that is given its inputs as they are."""

    def __init__(self, inner: nn.Module, feed: InputLayout) -> None:
        self.inner, self.feed = inner, feed
        tensors = [*inner.parameters(), *inner.buffers()]
        self.dtype = next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)
        self.device = next((t.device for t in tensors), torch.device("cpu"))

    def given(self, rows: Tensor) -> list[Tensor]:
        """Return the inputs of rows, where the network computes."""
        return self._here(self.feed.given(rows))

    def scores(self, rows: Tensor) -> Tensor:
        """Return what the network computes for rows."""
        return torch.cat([self._run(self.given(part)).detach().cpu() for part in torch.split(rows, ROWS_PER_PASS)])

    def scores_of_frame(self, table: Any) -> np.ndarray:
        """Return what the network computes for a DataFrame of original cells."""
        assert self.feed.of_frame is not None
        return as_scores(self._run(self._here(self.feed.of_frame(table))).detach().cpu().numpy())

    def _here(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [x.to(self.device, self.dtype if x.is_floating_point() else x.dtype) for x in inputs]

    def reads_all(self, rows: Tensor) -> bool:
        """Return whether each attribute makes a difference: a network that leaves one out was made for others."""
        scores = self.scores(rows)
        for place in range(rows.shape[1]):
            other = rows.clone()
            other[:, place] = rows[:, place].roll(1)
            if not torch.equal(other, rows) and torch.equal(self.scores(other), scores):
                return False
        return True

    def sites(self, rows: Tensor) -> tuple[list[Tensor], list[EmbeddingSite]]:
        """Return inputs of two rows, and the places where whole numbers become others."""
        (inputs, two), (_, three) = (self._seen(rows[:count]) for count in (2, 3))
        if len(two) != len(three):
            raise NotLinear("it computes other things for other numbers of rows")
        return inputs, [_site(a, b) for a, b in zip(two, three, strict=True)]

    def features(self, rows: Tensor, sites: Sequence[EmbeddingSite]) -> np.ndarray:
        """Return the inputs and what they are looked up to, for each row: (n, features)."""
        lines = []
        for part in torch.split(rows, PART):
            inputs, results = self._seen(part)
            if len(results) != len(sites):
                raise NotLinear("it computes other things for other rows")
            looked_up = [site.of_rows(r, len(part)) for site, r in zip(sites, results, strict=True)]
            lines.append(torch.cat([x.reshape(len(part), -1).double() for x in (*inputs, *looked_up)], 1).cpu())
        return torch.cat(lines).numpy()

    def _seen(self, rows: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        inputs, results = self.given(rows), list[Tensor]()

        def see(result: Tensor) -> Tensor:
            results.append(result.detach().clone())
            return result

        with Crossings(inputs, see):
            self._run(inputs)
        return inputs, results

    def _run(self, inputs: Sequence[Tensor]) -> Tensor:
        with torch.no_grad(), evaluating(self.inner.modules()):
            result = self.feed.call(self.inner, [x.clone() for x in inputs])
        if not isinstance(result, Tensor):
            raise ModelError(f"the module must return one tensor of scores, got {type(result).__name__}")
        return result


def _site(two: Tensor, three: Tensor) -> EmbeddingSite:
    """Return where the rows are in a result, from those for two and for three rows."""
    grown = [dim for dim, (a, b) in enumerate(zip(two.shape, three.shape, strict=False)) if a != b]
    if two.dim() != three.dim() or len(grown) != 1 or two.shape[grown[0]] * 3 != three.shape[grown[0]] * 2:
        raise NotLinear("it lays rows side by side, so that their gradients cannot be told apart")
    return EmbeddingSite(grown[0], two.numel() // 2)


def learned(request: Request, direct: Direct) -> tuple[TableEncoding, InputLayer]:
    """Return the encoding and the network behind its layer; refuse inputs that no such layer makes."""
    inside = ((request.tried >= 0) & (request.tried < request.domain.to("cpu").sizes)).all(1)
    rows = request.tried[inside]
    try:
        inputs, sites = direct.sites(rows)
        if not sites and not any(x.is_floating_point() for x in inputs):
            raise NotLinear("its code cannot be followed from whole numbers to its layers")
        width = sum(x[0].numel() for x in inputs) + sum(site.width for site in sites)
        check_size(ROWS_PER_PASS * width, f"{request.source}, its inputs", times=4)
        encoding, made = linear_layer(
            lambda some: direct.features(some, sites), request.domain, torch.zeros_like(rows[0])
        )
        features = direct.features(rows, sites)
    except (NotLinear, NeuronFairError):
        raise
    except Exception as error:  # the network's own code
        raise request.error(f"fails on rows of the domain ({type(error).__name__}: {one_line(error)})") from error
    if not np.isfinite(features).all():
        raise NotLinear("its inputs are NaN or infinite for some rows")
    ours = made(encoding.encode(rows, torch.float64)).detach().numpy()
    if (np.abs(ours - features) > TOLERANCE * (1 + np.abs(features).max(0))).any():
        raise NotLinear("its inputs mix columns")
    inner = direct.inner
    if not any(isinstance(part, ACTIVATIONS) for part in inner.modules()):
        try:
            inner = with_functions_as_modules(inner)
        except Exception:  # its forward() cannot be followed, so its layers stay unknown
            inner = direct.inner
    fed = InputLayer(inner, direct.feed, inputs, sites, made)
    fed.inputs.found_by_asking = direct.feed.asked
    for part in filter(None, (fed.inputs, fed.looked_up)):  # which alone are ours to change
        part.to(direct.device, direct.dtype)
    return encoding, fed


def open_fed(
    request: Request, kind: str, inner: nn.Module, feed: InputLayout, *, ask: Callable[[Tensor], Any] | None = None
) -> Opened:
    """Return a network whose inputs are made by a feed: a white box, or a black box with the reason.

    `ask` is the source itself, where there is one beside the torch module, to compare with.
    """
    direct = Direct(inner, feed)
    known = fingerprint(inner)
    of_frame = None if feed.of_frame is None else direct.scores_of_frame
    try:
        encoding, module = learned(request, direct)
        module.training = inner.training
        opened = request.white_box(kind, module, encoding=encoding, note=feed.note)
        same = request.reproduced(opened, direct.scores) and (ask is None or request.reproduced(opened, ask))
        if opened.white_box and same:
            return replace(opened, fingerprint=known, original=ask or direct.scores, scores_of_frame=of_frame)
        why = (
            "its scores could not be reproduced in torch"
            if opened.white_box
            else "no hidden activation was found in it"
        )
    except NotLinear as reason:
        why = str(reason)
    why = "; ".join(filter(None, (why, feed.note)))
    opened = request.black_box(kind, ask or direct.scores, why, print_of=known)
    return opened if ask is not None else replace(opened, scores_of_frame=of_frame)


def open_module(request: Request, kind: str, module: nn.Module) -> Opened:
    """Return a torch module as it can be fed: by preprocess, with what the domain declares, or with what fits it."""
    if request.preprocess is not None:
        return open_fed(request, kind, module, by_preprocess(request))
    names = arguments(module)
    if len(names) <= 1:  # a graph names its input to itself
        direct = Direct(module, by_domain(request))
        try:
            if not direct.sites(request.drawn)[1]:
                return request.white_box(kind, module)
            encoding, fed = learned(request, direct)
            fed.training = module.training
            return replace(request.white_box(kind, fed, encoding=encoding), fingerprint=fingerprint(module))
        except NotLinear:  # it has gradients, though not by whole numbers that it makes itself
            return request.white_box(kind, module)
        except TooLarge:
            raise
        except Exception:  # the module's own code refuses these numbers; others may fit
            pass
    fits = _fitting(request, module, names)
    if not fits and len(names) <= 1:
        return request.white_box(kind, module)  # which says what is wrong
    if not fits:
        raise request.error(f"takes {', '.join(names)}, which cannot be told from the domain alone. {REMEDY}")
    (feed, scores), *others = fits
    if any(s.shape != scores.shape or not torch.allclose(s, scores, TOLERANCE, TOLERANCE) for _, s in others):
        raise request.error(f"takes {', '.join(names)}, which fit the domain in several ways. {REMEDY}")
    return open_fed(request, kind, module, feed)


def graph_feed(
    request: Request, inputs: Sequence[NetworkInput], *, raw: Raw = "none", texts: Sequence[str] = ()
) -> InputLayout | None:
    """Return how the inputs that a file describes are made of rows; None for the numbers that the domain declares."""
    if request.preprocess is not None:
        return by_preprocess(request)
    if len(inputs) == 1 and inputs[0].kind == "float" and inputs[0].name not in request.domain.names:
        return None
    try:
        return matched(request, inputs, raw=raw, texts=texts)
    except Unmatched as reason:
        raise request.error(str(reason)) from reason


def _fitting(request: Request, module: nn.Module, names: Sequence[str]) -> list[tuple[InputLayout, Tensor]]:
    """Return the ways to feed a module that it accepts and reads all columns of, with its scores."""
    found = []
    for inputs in guesses(request, names):
        feed = matched(request, inputs, raw="none")
        direct = Direct(module, feed)
        try:
            scores = direct.scores(request.tried)
            by_name = set(names) <= set(request.domain.names)  # then it may leave columns out
            if len(scores) == len(request.tried) and (by_name or direct.reads_all(request.tried)):
                found.append((feed, scores))
        except Exception:  # the module's own code
            continue
    return found
