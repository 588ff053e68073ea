"""Commands about one model: its flip rate, certificates, and alternatives that discriminate less."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from neuronfair.alternative_models import AlternativesSettings
from neuronfair.cli import options
from neuronfair.cli.app import AUDIT, GATE_FAILED, INTERRUPTED, app, command, complain, option
from neuronfair.cli.options import FavourableOption, ForceOption, ModelOptions, OutputOptions, RayOption, TableOptions
from neuronfair.errors import DataError, NeuronFairError
from neuronfair.formatting import POPULATIONS, Population, TwinKind, interval_ends, join_words, percent, pluralise
from neuronfair.parameters import BUDGET, INPUT, OUTPUT, parameter

if TYPE_CHECKING:
    from rich.console import Console

    from neuronfair.audits.inputs import AuditInput
    from neuronfair.audits.report.attribute import FlipRateReport
    from neuronfair.audits.report.counterfactual import CounterfactualReport
    from neuronfair.audits.stages.case import AttributeCase
    from neuronfair.domain.population.model import PopulationModel
    from neuronfair.domain.tables.dataset import Dataset
    from neuronfair.model.decision import Decision
    from neuronfair.model.open import OpenedModel
    from neuronfair.proof.certificate import ProofReport
    from neuronfair.proof.problem import ProofProblem
    from neuronfair.proof.session import ProofRun
    from neuronfair.store.files import Json


# Flip rates


@dataclass(frozen=True)
class FlipRateOptions:
    """Which flip rate is measured, and how exactly."""

    population: Population | None = parameter(
        None, "Population to measure. Default: all but combinations.", panel=INPUT
    )
    twins: TwinKind = parameter("flip", "Attribute-flip test, or counterfactual test.", panel=INPUT)
    error: float = parameter(0.001, "Sample until the confidence interval is ± this at most.", panel=BUDGET)
    confidence: float = parameter(0.95, "Level of the confidence interval.", panel=BUDGET)
    samples: int = parameter(1_000_000, "Maximum number of records.", panel=BUDGET, low=1)
    seed: int = parameter(0, options.SEED)

    @property
    def populations(self) -> tuple[Population, ...]:
        """The populations to measure."""
        from neuronfair.audits.report.attribute import AUDITED

        return AUDITED if self.population is None else (self.population,)

    def make_case(self, model: OpenedModel, data: Dataset, population: PopulationModel | None = None) -> AttributeCase:
        """Return what is measured."""
        from neuronfair.audits.stages.case import AttributeCase

        budget = (self.samples, self.confidence, self.seed)
        return AttributeCase(model.model, data, model.decision, *budget, population=population, opened_model=model)


@command(app, panel=AUDIT, defaults={"data": ...}, omit=("columns",))
def rate(table: TableOptions, model: ModelOptions, output: OutputOptions, settings: FlipRateOptions) -> None:
    """Estimate the flip rate: how often the decision changes with the attribute (Themis).

    Populations: records of the data set with a plausible twin (pairs), all its records (table), realistic synthetic
    records (plausible), records drawn uniformly from the input schema (domain), and the same without its rules
    (combinations).

    --twins counterfactual compares records with their counterfactual twins, next to a permutation baseline;
    --population, --error and --samples have no effect then.

    Example:

    `neuronfair rate adult --sensitive sex --model adult.safetensors --population table`
    """
    console = output.console()
    opened_model, data, card = options.open_model_and_data(table, model, console, settings.seed)
    if card is None:
        options.warn_of_encoding_problem(opened_model, data, console)
    header = options.make_result_header(data, opened_model) | {"confidence": settings.confidence}
    if settings.twins == "counterfactual":
        report = _run_counterfactual_test(opened_model, data, settings, console)
        output.write(header | {"counterfactual": asdict(report)})
        return
    flip_rates = _estimate_rates(opened_model, data, settings, console)
    for flip_rate, error in flip_rates.values():
        _print_rate(console, data, flip_rate, error, settings.error)
    entries = {name: {**asdict(flip_rate), "error": error} for name, (flip_rate, error) in flip_rates.items()}
    output.write(header | {"rates": {name: entries.get(name) for name in settings.populations}})


def _estimate_rates(
    opened_model: OpenedModel, data: Dataset, settings: FlipRateOptions, console: Console
) -> dict[Population, tuple[FlipRateReport, float]]:
    """Return the flip rate of each population, with its error; a population that cannot be sampled is left out."""
    from neuronfair.audits.report.attribute import widen_interval
    from neuronfair.audits.stages.rates import fit_plausible_population
    from neuronfair.audits.wording.phrases import report_pair_rate, report_rate
    from neuronfair.render.terminal import progress_bar

    population_model = None
    if {"pairs", "plausible"} & {*settings.populations}:
        try:
            population_model = fit_plausible_population(data, None, settings.seed)
        except NeuronFairError as reason:
            if settings.population is not None:
                raise
            console.print(f"No rate of realistic synthetic records. {reason}")
    case = settings.make_case(opened_model, data, population_model)
    flip_rates: dict[Population, tuple[FlipRateReport, float]] = {}
    for name in settings.populations:
        population = case.records if name == "table" else population_model if name in ("pairs", "plausible") else name
        if population is None:
            continue
        with progress_bar(f"Evaluating {POPULATIONS[name]}", quiet=console.quiet) as show:
            if name != "pairs":
                estimate = case.rate(population, progress=show, error=settings.error)
                flip_rates[name] = report_rate(estimate), estimate.error
            elif (pairs := case.pair_rate(show)) is not None:
                flip_rates[name] = report_pair_rate(pairs), pairs.rate.error
    if "table" in flip_rates and "plausible" in flip_rates:
        plausible, error = flip_rates["plausible"]
        flip_rates["plausible"] = widen_interval(plausible, flip_rates["table"][0]), error
    return flip_rates


def _run_counterfactual_test(
    opened_model: OpenedModel, data: Dataset, settings: FlipRateOptions, console: Console
) -> CounterfactualReport:
    """Run the counterfactual test and print its result."""
    from neuronfair.audits.wording.phrases import report_counterfactual_test
    from neuronfair.render.terminal import progress_bar

    with progress_bar("Comparing records with their counterfactual twins", quiet=console.quiet) as show:
        effect = settings.make_case(opened_model, data).counterfactual_test(data.rows).measure(show)
    report = report_counterfactual_test(data.domain, data.rows, effect, settings.confidence)
    for sentence in report.sentences:
        console.print(sentence)
    return report


def _print_rate(console: Console, data: Dataset, rate: FlipRateReport, error: float, max_error: float) -> None:
    console.print(
        f"The decision depends on {join_words(data.domain.sensitive)} for {percent(rate.rate)} of "
        f"{POPULATIONS[rate.population]} ({percent(rate.confidence)} CI "
        f"{interval_ends(rate.rate, rate.low, rate.high)}; {rate.discriminated:,} of {rate.of:,}). "
        f"{rate.omission}".rstrip()
    )
    if error > max_error:
        remedy = "there are no more records" if rate.population in ("pairs", "table") else "raise --samples"
        console.print(f"The interval is wider than ± {percent(max_error)} (--error): {remedy}.")


# Certificates


@dataclass(frozen=True)
class CertifySettings:
    """What is certified, for how long, and where the certificate is written."""

    where: str = parameter(
        "", "Certify only records that meet this condition: 'age >= 30 and job in [a, b]'.", panel=INPUT
    )
    seconds: float = parameter(60.0, "Time limit in seconds.", panel=BUDGET, low=0, high=1e9)
    order: Literal["records", "volume"] = parameter(
        "records", "Certify first where most records, or most volume, is undecided.", panel=BUDGET
    )
    out: Path | None = parameter(
        None, "Folder to make, or to resume, with more --seconds too.", panel=OUTPUT, metavar="FOLDER"
    )
    row: int | None = parameter(
        None, "Show the certified region around this row of the data set, from 1.", panel=OUTPUT, low=1
    )
    check: Path | None = parameter(None, "Check this certificate instead of making one.", panel=INPUT)


@command(app, panel=AUDIT, omit=("columns",))
def certify(
    table: TableOptions,
    model: ModelOptions,
    settings: CertifySettings,
    output: OutputOptions,
    data: Annotated[
        str | None,
        option(
            "Data set (adult, german, …), table (CSV, Parquet, …) or domain file (TOML).",
            metavar="DATA",
            positional=True,
        ),
    ] = None,
    force: ForceOption = False,
    ray: RayOption = None,
) -> None:
    """Prove for how many records the decision does not depend on the sensitive attribute.

    It counts the records of the data set, realistic synthetic ones, and those of the input space or of --where: the
    decision is the same in every group, differs, or is undecided. The folder holds proof.json and certificate.parquet.
    After Ctrl-C the same command resumes; with more --seconds it continues.

    --check FILE verifies a certificate for the model that you name: exit status 0 if all of it holds, 1 if not.

    Examples:

    `neuronfair certify adult --model adult.safetensors --sensitive sex --out proof --row 17`

    `neuronfair certify --check proof/certificate.parquet --model adult.safetensors`
    """
    if model.model is None:
        raise NeuronFairError("name the model with --model: a file, or package.module:name")
    device, model = model.device, replace(model, device="cpu")
    model.check()
    console, out = output.console(), settings.out
    options.check_device(device)
    if settings.check is not None:
        audit_input = None if data is None else _load_table_or_domain(table, model)
        output.write(_check_certificate(settings.check, model, audit_input, console))
        return
    if data is None or out is None:
        raise NeuronFairError("name a table or a domain file, and a folder with --out; or a certificate with --check")
    options.check_run_folder(out, force, (data, model.model, model.weights, table.domain, table.attributes_file))
    from neuronfair.audits.provenance import list_replay_options
    from neuronfair.proof.session import CERTIFICATE, build_region_problem
    from neuronfair.store.ledger import DOMAIN

    audit_input = _load_table_or_domain(table, model)
    for remark in audit_input.remarks:
        console.print(f"Table: {remark}")
    opened_model = model.source.open(audit_input.data)
    options.warn_of_encoding_problem(opened_model, audit_input.data, console)
    problem = build_region_problem(opened_model, audit_input.data.domain, settings.where, device)
    run = _open_proof_folder(out, audit_input.data, opened_model, model, settings, force)
    table_data = None if _is_domain_file(data) else audit_input.data
    report, region = _prove_and_print(problem, opened_model, table_data, settings, run, ray, console)
    if problem.bounder is not None:  # otherwise there is nothing but the model's own word
        model_arguments = list_replay_options(opened_model, audit_input.provenance) or ("--model", str(model.model))
        words = ["neuronfair", "certify", "--check", str(out / CERTIFICATE), *model_arguments]
        console.print(f"Check it: {shlex.join(words)}", soft_wrap=True)
    if audit_input.inferred:
        console.print(f"The domain was read off the table. Please read and correct it: {out / DOMAIN}")
    output.write(json.loads(report.to_json()) | region)
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)


def _open_proof_folder(
    out: Path, data: Dataset, opened_model: OpenedModel, model: ModelOptions, settings: CertifySettings, force: bool
) -> ProofRun:
    """Return the folder of a proof, made now or opened again; with `force`, emptied first."""
    from neuronfair.proof.session import ProofRequest, ProofRun
    from neuronfair.store.ledger import discard, make_portable

    if force:  # not before all that can be wrong was read
        discard(out)
    return ProofRun.create_or_open(
        out,
        data,
        ProofRequest(opened_model.decision, settings.where, order=settings.order),
        model=make_portable(str(model.model)),
        weights=opened_model.fingerprint,
        outputs=opened_model.model.outputs,
        extra_weights=None if model.weights is None else str(model.weights.absolute()),
    )


def _prove_and_print(
    problem: ProofProblem,
    opened_model: OpenedModel,
    data: Dataset | None,
    settings: CertifySettings,
    run: ProofRun,
    ray: str | None,
    console: Console,
) -> tuple[ProofReport, Json]:
    """Prove, here or with the workers of --ray, and print the result; the region of --row is an entry of the JSON."""
    from neuronfair.proof.records import ProofRecords
    from neuronfair.proof.regions import find_region
    from neuronfair.proof.session import certify as certify_problem
    from neuronfair.render.terminal import compose_proof, describe_region, stage_progress

    report, records = run.find_report(settings.seconds), ProofRecords.none(problem, problem.domain.name)
    if (report is None or settings.row is not None) and data is not None:
        records = ProofRecords.of(problem, data, order=settings.order, model=opened_model)
    if report is not None:
        console.print(f"{run.folder}: this proof is finished already. More --seconds continue it, --force starts anew.")
    else:
        with options.make_pool(ray) as pool, stage_progress("Proving", quiet=console.quiet) as bar:
            report, _ = certify_problem(
                problem, opened_model, records, settings.seconds, show=bar, run=run, pool=None if ray is None else pool
            )
    console.print(compose_proof(report))
    if settings.row is None:
        return report, {}
    region = find_region(records, settings.row)
    console.print(f"Row {settings.row:,}: {describe_region(region)}", soft_wrap=True)
    return report, {"row": None if region is None else asdict(region)}


def _is_domain_file(data: str) -> bool:
    return Path(data).suffix.lower() == ".toml"


def _load_table_or_domain(table: TableOptions, model: ModelOptions) -> AuditInput:
    """Return a table or, of a domain file alone, records drawn from it for the model to be tried on."""
    from neuronfair.audits.inputs import draw_records, read_input
    from neuronfair.domain.schema.toml import read_domain

    if not _is_domain_file(table.data):
        return table.load(model)
    if table.domain is not None or table.target is not None or table.join_arguments:
        raise NeuronFairError(
            f"{table.data}: is a domain file; --domain, --target and --attributes-file are for tables of your own"
        )
    return read_input(
        draw_records(read_domain(Path(table.data))), model.source, sensitive=options.split_names(table.sensitive)
    )


def format_decision(decision: Decision) -> str:
    """Return a decision as --decision takes it."""
    return decision.kind if decision.kind == "argmax" else f"{decision.kind}={decision.value!r}"


def _check_certificate(path: Path, model_options: ModelOptions, table: AuditInput | None, console: Console) -> Json:
    """Check a certificate and return its counts; one that does not hold ends with exit status 1."""
    from neuronfair.audits.inputs import draw_records
    from neuronfair.proof.certificate import CertificateError, read_certificate
    from neuronfair.proof.checker.check import check
    from neuronfair.render.terminal import progress_bar

    if not path.is_file():
        raise NeuronFairError(f"--check {path}: there is no such file")
    try:
        certificate = read_certificate(path)
        opened_model = model_options.source.open(draw_records(certificate.domain))
        decision, certified = format_decision(opened_model.decision), format_decision(certificate.decision)
        if decision != certified:
            raise CertificateError(
                f"{path}: it is about another decision, {certified}, not {decision}. Name it to check it: "
                f"--decision {certified}"
            )
        with progress_bar("Checking", quiet=console.quiet) as bar:
            result = check(path, opened_model, domain=None if table is None else table.data.domain, progress=bar)
    except CertificateError as error:
        complain(f"refused: {error}")
        raise typer.Exit(GATE_FAILED) from None
    condition = f"where {certificate.where} " if certificate.where else ""
    console.print(
        f"Verified: {pluralise(result.boxes, 'box', 'boxes')} hold for this model and the decision {certified}. Of "
        f"{pluralise(result.record_count, 'record')} {condition}the decision does not depend on "
        f"{join_words(certificate.domain.sensitive)} for {result.fair:,} at least, and does for "
        f"{result.discriminatory:,} at least."
    )
    if table is None:
        console.print(
            "The records are those of the input schema in the certificate. Name your table or domain file to compare "
            "it."
        )
    counts = map(str, (result.record_count, result.fair, result.discriminatory))
    keys = ("people", "proved_fair", "proved_discriminatory")
    return {"verified": True, **dict(zip(keys, counts, strict=True)), "boxes": result.boxes}


# Better models


@command(app, panel=AUDIT, omit=("encoding", "attributes_file", "key"))
def alternatives(
    table: TableOptions,
    settings: AlternativesSettings,
    output: OutputOptions,
    model: Annotated[
        Path | None, option("Fitted model (.skops, .joblib, .safetensors), cloned with its parameters.", panel=INPUT)
    ] = None,
    estimator: Annotated[
        str | None,
        option("Estimator to fit: logistic, boosting, forest, lightgbm, network or package.module:make.", panel=INPUT),
    ] = None,
    favourable: FavourableOption = None,
    trust_pickle: Annotated[
        bool, option("Open pickle files, which can run any code.", "--trust-pickle", panel=INPUT)
    ] = False,
    out: Annotated[Path, option("Folder to make, or to resume after an interruption.", panel=OUTPUT)] = Path(
        "neuronfair-alternatives"
    ),
    audit: Annotated[
        Literal["none", "chosen"], option("Audit the baseline and the chosen model by the test part.", panel=OUTPUT)
    ] = "none",
    force: ForceOption = False,
) -> None:
    """Search for a model that is as good for its purpose and less discriminatory.

    Candidates are fitted to one part of the table, chosen by another, and a few are measured on a third part, once. The
    folder has the models, the report, every fit of the search and a paragraph for the file of a regulator.

    Example:

    `neuronfair alternatives loans.csv --target paid --sensitive sex --favourable yes --model m.skops --out run`
    """
    if (model is None) == (estimator is None):
        raise DataError("name one of the two: the --model that is in use, or an --estimator to fit")
    table.check()
    console = output.console()
    _check_alternatives_folder(out)
    from neuronfair.alternative_models.report import alternatives_page, alternatives_report, regulator_text
    from neuronfair.alternative_models.session import alternatives as search
    from neuronfair.domain.tables.dataset import DATASETS, load_dataset
    from neuronfair.render.page import render_audit
    from neuronfair.render.terminal import compose_proof, stage_progress

    sensitive = options.split_names(table.sensitive)
    is_catalog = table.data in DATASETS
    proofs: dict[str, ProofReport] = {}
    with stage_progress("Searching for alternatives", quiet=console.quiet) as progress:
        search_session = search(
            str(model) if model is not None else estimator,
            load_dataset(table.data, sensitive=sensitive) if is_catalog else Path(table.data),
            sensitive=None if is_catalog else sensitive,
            target=table.target,
            domain=table.domain,
            favourable=favourable,
            settings=settings,
            out=out,
            force=force,
            progress=progress,
            trust_pickle=trust_pickle,
        )
        report = search_session.report
        options.write_file(out / "report.html", alternatives_page(report))
        options.write_file(out / "regulator.md", regulator_text(report))
        if audit == "chosen" and report.chosen is not None:
            for stage, name in (("before", "baseline"), ("after", report.chosen)):
                options.write_file(out / f"{stage}.html", render_audit(search_session.audit(name, progress)))
                proofs[stage] = search_session.certify(name, out / f"{stage}-certificate", progress)
    console.print(alternatives_report(report))
    for stage, proof in proofs.items():
        console.print(f"Certificate {stage}: {out / f'{stage}-certificate'}", compose_proof(proof), sep="\n")
    console.print(f"Report: {out / 'report.html'}", soft_wrap=True)
    if report.chosen is not None:
        console.print(f"Model: {out / report.files[report.chosen]}", soft_wrap=True)
    output.write(json.loads(report.to_json()))
    if report.conclusion == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _check_alternatives_folder(out: Path) -> None:
    """Refuse a folder that is not one of a search."""
    from neuronfair.alternative_models.search import FILE

    if out.exists() and not out.is_dir():
        raise DataError(f"--out {out}: is no folder. Choose another name")
    present = [path.name for path in out.iterdir()] if out.is_dir() else []
    if present and FILE not in present:
        raise NeuronFairError(f"--out {out}: holds other files. Choose an empty folder, or one of an earlier search")
