"""How many fewer people the rate of a domain needs where a part is proved.

python benchmarks/strata.py /tmp/audit/model.safetensors --data adult --sensitive sex --seconds 5 60
python benchmarks/strata.py AC-1.npz --domain adult.toml --sensitive sex

For each number of seconds: what is proved, the shares of the domain that people are drawn from and that had to be
judged, both intervals from as many people, and how many people drawn from all would have as narrow an interval.
"""

from __future__ import annotations

import argparse

import neuronfair
from neuronfair.formatting import percent, spanned
from neuronfair.measure.rate import Rate, discrimination_rate
from neuronfair.proof.decide.prove import prove
from neuronfair.proof.decide.strata import strata_rate
from neuronfair.proof.problem import problem_of

import torch


def people_needed(rate: float, error: float) -> int:
    """Return about how many people of the whole domain give an interval of this half-width."""
    people = 1
    while Rate(round(rate * people), people, "domain").error > error:
        people *= 2
    low = people // 2
    while people - low > max(1, people // 200):
        middle = (people + low) // 2
        low, people = (low, middle) if Rate(round(rate * middle), middle, "domain").error <= error else (middle, people)
    return people


def main() -> None:
    """Print a line for each number of seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", help="a data set with its domain")
    parser.add_argument("--domain", help="a domain file")
    parser.add_argument("--sensitive", nargs="+", default=["sex"])
    parser.add_argument("--seconds", nargs="+", type=float, default=[5.0])
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    domain = neuronfair.load_dataset(args.data).domain if args.data else neuronfair.read_domain(args.domain)
    domain = domain.with_sensitive(*args.sensitive)
    rows = domain.sample(1000, torch.Generator().manual_seed(0))
    opened = neuronfair.open_model(args.model, domain, rows, device=args.device)
    subject = problem_of(opened, domain, device=args.device)
    exact = opened.model.double()
    plain = discrimination_rate(exact, domain, samples=args.samples, decision=opened.decision)
    for seconds in args.seconds:
        proof = prove(subject, seconds=seconds)
        rate = strata_rate(exact, subject, proof, samples=args.samples, seed=2)
        shares = [percent(part / proof.people) for part in (proof.fair, proof.discriminatory, proof.open)]
        if rate.sample is None:
            print(f"{seconds:g} s: all is proved, the rate is {percent(rate.rate)} exactly")
            continue
        needed = people_needed(rate.rate, rate.error)
        print(
            f"{seconds:g} s: fair {shares[0]}, discriminatory {shares[1]}, open {shares[2]}; drawn from "
            f"{percent(rate.left / rate.people)}, judged {percent(rate.part * rate.left / rate.people)} of the domain; "
            f"{spanned(rate.rate, *rate.interval)} instead of "
            f"{spanned(plain.rate, *plain.interval)} from {args.samples:,} people, as from {needed:,}: "
            f"{needed / args.samples:.2g} times fewer"
        )


if __name__ == "__main__":
    main()
