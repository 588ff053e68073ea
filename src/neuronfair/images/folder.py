"""What an audit of pictures leaves in its folder: each step as soon as it is done, so that a kill loses one at most."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeVar

import torch

from neuronfair.atomic import replacing
from neuronfair.audits.folder import enter, kept
from neuronfair.images.domain import ImageDomain
from neuronfair.images.latent_shift import LatentSpace
from neuronfair.images.search import PictureSearch
from neuronfair.searches.findings import Findings
from neuronfair.store.files import load_state, save_state, writing

WEIGHTS, ATTRIBUTE, LATENT = (f"{name}.safetensors" for name in ("detector", "attribute", "latent"))
_COUNTS = [field.name for field in fields(Findings) if field.type == "int"]
_TENSORS = [field.name for field in fields(Findings) if field.name not in _COUNTS]
T = TypeVar("T")


def once(
    folder: Path | None, name: str, make: Callable[[], T], save: Callable[[Path, T], None], load: Callable[[Path], T]
) -> T:
    """Return what the file of this name keeps; where there is none yet, make it and keep it."""
    there = None if folder is None else kept(folder, name)
    if there is not None:
        return load(there)
    made = make()
    if folder is not None:
        keep(folder, name, lambda path: save(path, made))
    return made


def keep(folder: Path, name: str, save: Callable[[Path], None]) -> None:
    """Write a file, and enter it into the manifest: from then on it is known."""
    with writing(folder):
        save(folder / name)
        enter(folder, name)


def search_once(
    folder: Path | None, name: str, domain: ImageDomain, make: Callable[[], PictureSearch]
) -> PictureSearch:
    """Return what a search has found, from the folder or now."""
    name = re.sub(r"\W+", "-", name)
    file = f"found-{name}.safetensors"
    return once(folder, file, make, _save, lambda path: _load(path, domain))


def latent_once(folder: Path | None, device: torch.device, make: Callable[[], LatentSpace]) -> LatentSpace:
    """Return the latent space of the faces, from the folder or now."""

    def save(path: Path, space: LatentSpace) -> None:
        with replacing(path) as temporary:
            save_state(vars(space), temporary)

    return once(folder, LATENT, make, save, lambda path: LatentSpace(**load_state(path, device)))


def _save(path: Path, search: PictureSearch) -> None:
    found = search.findings
    lines = {name: getattr(found, name) for name in _TENSORS}
    lines["counts"] = torch.tensor([*(getattr(found, name) for name in _COUNTS), search.seeds])
    lines["seconds"] = torch.tensor(search.seconds, dtype=torch.float64)
    with replacing(path) as temporary:
        save_state(lines, temporary)


def _load(path: Path, domain: ImageDomain) -> PictureSearch:
    lines = load_state(path, domain.device)
    *counts, seeds = lines["counts"].tolist()
    held = {name: lines[name] for name in _TENSORS} | dict(zip(_COUNTS, counts, strict=True))
    found = replace(Findings.empty(domain, lines["scores"].shape[1]), **held)
    return PictureSearch(domain, found, seeds, float(lines["seconds"]))
