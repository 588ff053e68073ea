"""Networks opened as they can be fed: with what the domain declares, what a function makes, or what fits them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from neuronfair.limits import TooLarge
from neuronfair.model.open.fed import Direct, learned
from neuronfair.model.open.feeds import (
    REMEDY,
    Feed,
    Input,
    Raw,
    Unmatched,
    arguments,
    by_domain,
    by_preprocess,
    guesses,
    matched,
)
from neuronfair.model.open.opened import TOLERANCE, Opened, Request
from neuronfair.model.open.preprocessing import NotLinear
from neuronfair.model.weights import fingerprint


def open_fed(
    request: Request, kind: str, inner: nn.Module, feed: Feed, *, ask: Callable[[Tensor], Any] | None = None
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
    request: Request, inputs: Sequence[Input], *, raw: Raw = "none", texts: Sequence[str] = ()
) -> Feed | None:
    """Return how the inputs that a file describes are made of rows; None for the numbers that the domain declares."""
    if request.preprocess is not None:
        return by_preprocess(request)
    if len(inputs) == 1 and inputs[0].kind == "float" and inputs[0].name not in request.domain.names:
        return None
    try:
        return matched(request, inputs, raw=raw, texts=texts)
    except Unmatched as reason:
        raise request.error(str(reason)) from reason


def _fitting(request: Request, module: nn.Module, names: Sequence[str]) -> list[tuple[Feed, Tensor]]:
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
