"""Δ_senatt that people can see: a step from one group of faces to another in the latent space of an autoencoder.

The autoencoder is linear: the principal components of the faces (eigenfaces; Turk and Pentland 1991). It is the best of
all linear ones, is found without training in seconds, and has nothing to tune. The direction of an attribute is the
difference of the groups' means in its latent space, as in the attribute vectors of generative models. The picture gets
the *difference* of the two decodings, so that all that the autoencoder does not know of a face stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from neuronfair.images.attribute_shift import BATCH, MOST, AttributeShift, smallest
from neuronfair.images.detector import scores

SIZE = 64  # of the latent space
FACES = 4000  # that it is fitted to: more change little
SCHEDULE: tuple[float, ...] = (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8)  # times the way from group to group


@dataclass(frozen=True, eq=False)
class LatentSpace:
    """What a linear autoencoder knows of faces, and where their groups lie in it. It decodes to grey levels."""

    decoder: Tensor  # (size, c, h, w)
    spread: Tensor  # (size,): standard deviation of the faces in each direction
    groups: Tensor  # (classes, size): the mean of each, about the mean of all


def fit_latent(faces: Tensor, labels: Tensor, *, seed: int = 0) -> LatentSpace:
    """Fit the autoencoder to 8-bit faces, and find the mean of each class; one without a face is the mean of all."""
    device = faces.device
    order = torch.randperm(len(faces), generator=torch.Generator().manual_seed(seed))[:FACES]
    classes, x = int(labels.max()) + 1, faces.cpu()[order].flatten(1).float()  # the same, whatever the device
    x -= x.mean(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _, _, basis = torch.pca_lowrank(x, min(SIZE, *x.shape), center=False, niter=3)
    codes = x @ basis
    members = functional.one_hot(labels.cpu()[order], classes).float()
    groups = (members.T @ codes) / members.sum(0).clamp(min=1)[:, None]
    decoder = basis.T.reshape(-1, *faces.shape[1:])
    return LatentSpace(decoder.to(device), codes.std(0).to(device), groups.to(device))


def flip_latent(space: LatentSpace, classifier: nn.Module, pictures: Tensor) -> AttributeShift:
    """Return the smallest step towards another group that changes the attribute of each 8-bit picture.

    It goes from the group that the classifier puts the picture into towards the one that it holds second likely.
    """
    parts = [_flip(space, classifier, part) for part in torch.split(pictures, BATCH)]
    return AttributeShift(torch.cat([part.levels for part in parts]), torch.cat([part.size for part in parts]))


def _flip(space: LatentSpace, classifier: nn.Module, pictures: Tensor) -> AttributeShift:
    best = scores(classifier, pictures)
    # The classifier may know classes beyond the last one that a face was seen of: they, too, are the mean of all.
    groups = functional.pad(space.groups, (0, 0, 0, max(0, best.shape[1] - len(space.groups))))
    best = best.topk(min(2, best.shape[1])).indices
    before, other = best[:, 0], best[:, -1]
    way = torch.tensordot(groups[other] - groups[before], space.decoder, 1)
    return smallest(classifier, pictures, before, SCHEDULE, lambda left, size: size * way[left])


def random_latent(space: LatentSpace, shift: AttributeShift, *, seed: int = 0) -> Tensor:
    """Return shifts of the same L2 norm in random directions of the latent space: the control. int8, (n, c, h, w).

    Directions are drawn as faces lie in it, so they look like what tells one face from another.
    """
    generator, parts = torch.Generator().manual_seed(seed), []
    for part in torch.split(shift.levels, BATCH):
        drawn = torch.randn(len(part), len(space.spread), generator=generator).to(part.device) * space.spread
        way = torch.tensordot(drawn, space.decoder, 1)
        size = part.float().flatten(1).norm(dim=1) / way.flatten(1).norm(dim=1).clamp(min=1e-9)
        parts.append((way * size[:, None, None, None]).round().clamp(-MOST, MOST).to(torch.int8))
    return torch.cat(parts)
