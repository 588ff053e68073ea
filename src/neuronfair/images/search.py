"""The searches for images: their methods, the walk with bisection, controls, and the figures of what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from neuronfair.atomic import replace_file
from neuronfair.domain.draws import Draws, draw_order
from neuronfair.domain.twins import GROUP, SAMPLE
from neuronfair.errors import NeuronFairError, did_you_mean
from neuronfair.images.detector import predict_classes
from neuronfair.images.domain import IMAGES_PER_PASS, PIXELS, ImageDomain, ImageEncoding
from neuronfair.images.report import HALVING, RANDOM_SHIFT, ImageSearchReport
from neuronfair.measure.rate import Rate
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.model.profile import BiasProfile
from neuronfair.searches.engine import Budget, run_phase
from neuronfair.searches.evaluate import Evaluation, evaluate
from neuronfair.searches.findings import Findings
from neuronfair.searches.keys import KeySet
from neuronfair.searches.method import Method, SearchContext, State, renew_state
from neuronfair.searches.methods import METHODS, Setting
from neuronfair.store.files import load_state, save_state

if TYPE_CHECKING:
    from neuronfair.images.audit import DetectorSubject

STEPS = 40  # max_iter_g of the paper
CONTROLLED_METHODS = ("neuronfair", HALVING)
_COUNT_FIELDS = [field.name for field in fields(Findings) if field.type == "int"]
_TENSOR_FIELDS = [field.name for field in fields(Findings) if field.name not in _COUNT_FIELDS]


def list_image_methods() -> dict[str, str]:
    """Return the methods for images, with the methods whose global phases they run. Halving runs NeuronFair's."""
    walks: dict[str, str] = {}
    for name, entry in METHODS.items():
        if entry.image_method is not None:
            walks.setdefault(entry.image_method, name)  # ours come first
    return walks | {HALVING: walks["neuronfair"]}


def make_image_method(name: str, setting: Setting) -> Method:
    """Return the global phase of a method for images, which have no local phase."""
    methods = list_image_methods()
    if name not in methods:
        raise NeuronFairError(f"no method '{name}' for images. {did_you_mean(name, methods)}")
    method = METHODS[methods[name]].make(setting).global_phase
    return Halving(method) if name == HALVING else method


@dataclass(frozen=True)
class Halving:
    """Move as the method `inner` does, and bisect a step that crosses the boundary. All codes must have an order.

    A step of the paper's size changes the score of an image far more than the shift of its attribute does, so a chain
    mostly steps over the strip where the decision flips. This is not in the paper.

    Between the last row on the seed's side and the first one beyond, the middle is evaluated, and so on until the
    decision flips or no whole step is left; then `inner` continues.
    """

    inner: Method

    def start(self, context: SearchContext, state: State) -> State:
        """Return the chains before they cross the boundary."""
        rows = state["rows"]
        is_halving = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        return self.inner.start(context, state) | {
            "side": is_halving.long(),
            "near": rows,
            "far": rows,
            "halving": is_halving,
            "next": rows,
        }

    def ask(self, context: SearchContext, state: State, t: int) -> Tensor:
        """Return the middle for chains that bisect, and the rows of the inner method for the others."""
        return torch.where(state["halving"][:, None], state["next"], self.inner.ask(context, state, t))

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Bisect between both sides of the boundary, or continue with the inner method."""
        decisions = evaluation.scores.argmax(1)
        side = decisions if t == 0 else state["side"]
        is_near_side = decisions == side
        near = torch.where(is_near_side[:, None], rows, state["near"])
        far = torch.where(is_near_side[:, None], state["far"], rows)
        middle = near + torch.div(far - near, 2, rounding_mode="floor")
        is_finished = (middle == near).all(1) | (middle == far).all(1)
        is_halving = (state["halving"] | ~is_near_side) & ~is_finished
        state = state | {
            "side": torch.where(is_halving, side, decisions),
            "near": torch.where(is_halving[:, None], near, rows),
            "far": far,
            "halving": is_halving,
            "next": middle,
        }

        def tell_inner(chains: Tensor | slice) -> State:
            chain_state = {name: tensor[chains] for name, tensor in state.items()}
            chain_state.pop("counted", None)  # NeuronFair redraws it in some steps only, perhaps while a chain bisects
            return self.inner.tell(context, chain_state, rows[chains], evaluation[chains], t)

        return state | renew_state(~is_halving, state, tell_inner)


# Searches and their controls


@dataclass(frozen=True)
class ImageSettings:
    """How a detector is trained and searched; the defaults suit minutes on two cores for 500 faces.

    `chains` go together, which bounds the memory; the batches do not change what is found. After so many `seconds` a
    search begins no further batch, so that what it finds depends on the machine.
    """

    body: str = "small"
    weights: Path | None = None  # of a pretrained body, to start training from
    own_body: bool = False  # train a body for the attribute classifier, too
    epochs: int = 12
    steps: int = STEPS
    seeds: int | None = None  # pictures that each search starts from; None: all
    control_seeds: int = 200  # that each control starts from: enough to tell 5% from 15%
    chains: int | None = None  # None: 128 on a CPU, 512 elsewhere
    seconds: float | None = None
    seed: int = 0

    @property
    def of_searches(self) -> dict[str, object]:
        """Everything that findings depend on, for a manifest."""
        values = asdict(self) | {"weights": self.weights and str(self.weights)}
        return {name: value for name, value in values.items() if name != "chains"}


@dataclass(frozen=True, eq=False)
class ImageSearch:
    """What one method found from the seed pictures of a domain, and how long it took."""

    domain: ImageDomain
    findings: Findings
    seeds: int
    seconds: float


SearchRunner = Callable[[str, ImageDomain, Callable[[], ImageSearch]], ImageSearch]


def search_images(
    network: Network,
    domain: ImageDomain,
    method: str,
    seeds: Tensor,
    settings: ImageSettings | None = None,
    *,
    profile: BiasProfile | None = None,
    blind: bool = False,
) -> ImageSearch:
    """Walk from the seed pictures with these numbers until each has met one discriminatory picture.

    `blind` replaces every gradient by noise: the same walk in random directions. Ctrl-C is a KeyboardInterrupt.
    """
    settings = settings or ImageSettings()
    reader = network.with_encoding(ImageEncoding(domain))
    context = SearchContext(reader, domain, Decision(), Draws(settings.seed, "global"), profile=profile, blind=blind)
    evaluated = KeySet(domain.device)
    image_method = make_image_method(method, Setting(context, evaluated, len(seeds) * settings.steps))
    budget = Budget(steps=settings.steps, findings_per_seed=1)
    parts = [Findings.empty(domain, network.outputs)]
    seconds, seed_count = 0.0, 0
    for batch in torch.split(seeds, settings.chains or (128 if domain.device.type == "cpu" else 512)):
        result = run_phase(context, image_method, domain.rows(batch), budget=budget, origin=batch, key_set=evaluated)
        if result.stop == "interrupted":
            raise KeyboardInterrupt
        parts.append(result.findings)
        seconds, seed_count = seconds + result.seconds, seed_count + len(batch)
        if settings.seconds is not None and seconds >= settings.seconds:
            break
    return ImageSearch(domain, Findings.join(parts), seed_count, seconds)


def report_search(classifier: nn.Module, search: ImageSearch) -> ImageSearchReport:
    """Return the figures of one search; the classifier says what the attribute is."""
    findings, domain = search.findings, search.domain
    rows, has_findings = findings.rows, len(findings) > 0
    share = Rate(len(set(findings.origin.tolist())), max(1, search.seeds), "table")
    return ImageSearchReport(
        seeds=search.seeds,
        faces_found=share.flips,
        share_of_faces=share.rate,
        share_low=share.interval[0],
        share_high=share.interval[1],
        findings=len(findings),
        gsr=findings.success_rate,
        tried=findings.tried,
        rejected=findings.rejected,
        found_at_once=int((findings.step == 0).sum()),
        bias_l2=float(measure_change_norms(domain, rows).mean()) if has_findings else None,
        shift_l2=float(measure_shift_norms(domain, rows).mean()) if has_findings else None,
        attribute_still_flips=measure_remaining_flips(classifier, domain, rows) if has_findings else None,
        median_step=float(findings.step.double().median()) if has_findings else None,
        seconds=search.seconds,
        seconds_per_1000=1000 * search.seconds / len(findings) if has_findings else None,
    )


def measure_shift_norms(domain: ImageDomain, rows: Tensor) -> Tensor:
    """Return the L2 norm of Δ_senatt as it is in the pictures, pixels in [0, 1]: float64, (n,)."""
    return _measure_norms(domain, rows, domain.twins(rows).rows[:, 0])


def measure_change_norms(domain: ImageDomain, rows: Tensor) -> Tensor:
    """Return the L2 norm of Δ_bias, from the seed picture to the finding, pixels in [0, 1]: float64, (n,)."""
    start = domain.rows(rows[:, SAMPLE].long()).to(rows.dtype)
    return _measure_norms(domain, torch.cat([rows[:, :GROUP], rows[:, GROUP:PIXELS] * 0, rows[:, PIXELS:]], 1), start)


def _measure_norms(domain: ImageDomain, rows: Tensor, others: Tensor) -> Tensor:
    encoding = ImageEncoding(domain)
    norms = [torch.empty(0, dtype=torch.float64, device=rows.device)]
    for part, other_part in zip(torch.split(rows, IMAGES_PER_PASS), torch.split(others, IMAGES_PER_PASS), strict=True):
        difference = encoding.encode(part, torch.float64) - encoding.encode(other_part, torch.float64)
        norms.append(difference.flatten(1).norm(dim=1))
    return torch.cat(norms)


def measure_score_gap(network: Network, domain: ImageDomain, rows: Tensor) -> float:
    """Return how far the shift moves the scores of pictures, in the mean: compare it with that of a random shift."""
    network = network.with_encoding(ImageEncoding(domain))
    gaps = [evaluate(network, domain, part).gaps[:, 0] for part in torch.split(rows, IMAGES_PER_PASS)]
    return float(torch.cat(gaps).mean())


def measure_remaining_flips(classifier: nn.Module, domain: ImageDomain, rows: Tensor) -> float:
    """Return the share of findings whose two pictures the attribute classifier still tells apart.

    The shift was made for the seed picture; after a long walk it may no longer flip the attribute.
    """
    flips = 0
    for part in torch.split(rows, IMAGES_PER_PASS):
        part_rows, twins = part, domain.twins(part).rows[:, 0]
        classes = [predict_classes(classifier, domain.levels(r)) for r in (part_rows, twins)]
        flips += int((classes[0] != classes[1]).sum())
    return flips / len(rows)


def search_with_controls(
    subject: DetectorSubject,
    methods: Sequence[str],
    settings: ImageSettings,
    runner: SearchRunner = lambda name, domain, search: search(),
) -> dict[str, ImageSearch]:
    """Search with each method from all seeds, and with controls from some.

    `…, random direction` is the same walk with noise in the place of gradients; `…, random shift` is the same walk
    with a shift of equal size in a random direction, so that what flips there is not the attribute.
    `runner` gets each search with its name and domain, and may return what an earlier run kept.
    """
    domain = subject.domain
    order = draw_order(len(domain.pictures), settings.seed)
    seeds = order[: settings.seeds].to(domain.device)
    control_seeds = seeds[: settings.control_seeds]
    jobs = [(method, method, domain, seeds, False) for method in methods]
    for method in (method for method in CONTROLLED_METHODS if method in methods):
        jobs.append((f"{method}, random direction", method, domain, control_seeds, True))
        jobs.append((f"{method}, {RANDOM_SHIFT}", method, subject.random, control_seeds, False))
    searches: dict[str, ImageSearch] = {}
    for name, method, search_domain, seeds, blind in jobs:
        job = partial(search_images, subject.network, search_domain, method, seeds, settings, profile=subject.profile)
        searches[name] = runner(name, search_domain, partial(job, blind=blind))
    return searches


def save_search(path: Path, search: ImageSearch) -> None:
    """Write what a search found to a safetensors file."""
    findings = search.findings
    state = {name: getattr(findings, name) for name in _TENSOR_FIELDS}
    state["counts"] = torch.tensor([*(getattr(findings, name) for name in _COUNT_FIELDS), search.seeds])
    state["seconds"] = torch.tensor(search.seconds, dtype=torch.float64)
    with replace_file(path) as temporary:
        save_state(state, temporary)


def load_search(path: Path, domain: ImageDomain) -> ImageSearch:
    """Read what `save_search` wrote."""
    state = load_state(path, domain.device)
    *counts, seeds = state["counts"].tolist()
    values = {name: state[name] for name in _TENSOR_FIELDS} | dict(zip(_COUNT_FIELDS, counts, strict=True))
    findings = replace(Findings.empty(domain, state["scores"].shape[1]), **values)
    return ImageSearch(domain, findings, seeds, float(state["seconds"]))
