"""Commands of research: train, interpret, search, compare methods."""

from __future__ import annotations

from contextlib import chdir
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from neuronfair.cli import options
from neuronfair.cli.app import RESEARCH, app, command, option
from neuronfair.cli.files import read_own_model
from neuronfair.errors import ModelError, NeuronFairError
from neuronfair.formatting import join_words
from neuronfair.parameters import BUDGET, INPUT, OUTPUT
from neuronfair.scale.pool import check_address
from neuronfair.searches.config import SearchConfig

if TYPE_CHECKING:
    from rich.console import Console

    from neuronfair.domain.tables.dataset import Dataset
    from neuronfair.model.blackbox import Model
    from neuronfair.scale.pool import Pool
    from neuronfair.searches.campaign import SearchResult
    from neuronfair.store.run import Run


@command(app, panel=RESEARCH, defaults={"data": ...})
def train(
    table: options.TableOptions,
    out: Annotated[Path, option("Weights file to write (.safetensors), with a card in JSON.", panel=OUTPUT)],
    hidden: Annotated[
        str | None, option("Neurons of each hidden layer, such as 64,32,16. Default: as in the paper.", panel=INPUT)
    ] = None,
    seed: options.SeedOption = 0,
    quiet: options.QuietOption = False,
) -> None:
    """Train a classifier on 70% of a data set and report its accuracy on the rest.

    Example: `neuronfair train adult --out adult.safetensors`
    """
    from neuronfair.model.weights import save_weights
    from neuronfair.render.terminal import make_console

    out = options.check_weights(out)
    console = make_console(quiet=quiet)
    module, card = options.fit_classifier(table.load().data, console, seed, _read_layer_sizes(hidden))
    save_weights(out, module, card)
    console.print(f"Wrote {out} and {out.with_suffix('.json')}.", soft_wrap=True)


@command(app, panel=RESEARCH, defaults={"data": ...}, omit=("columns",))
def interpret(
    table: options.TableOptions,
    model: options.ModelOptions,
    output: options.OutputOptions,
    plot: Annotated[Path | None, option("Draw the AS curves (.png, .svg or .pdf).", panel=OUTPUT)] = None,
    seed: options.SeedOption = 0,
) -> None:
    """Show which layers and neurons react when only the sensitive attribute changes.

    Example:

    `neuronfair interpret adult --sensitive sex --plot curves.png`
    """
    model.check()
    from neuronfair.measure.rate import ablate
    from neuronfair.model.network import Network
    from neuronfair.model.profile import interpret as run
    from neuronfair.plots import PICTURE_SUFFIXES, import_matplotlib, saved_figure
    from neuronfair.render.terminal import describe_profile, list_interpretation, make_layer_table, progress_bar

    options.check_out(plot, PICTURE_SUFFIXES)
    if plot is not None:
        import_matplotlib()
    console = output.console()
    opened_model, data, card = options.open_model_and_data(table, model, console, seed)
    network = opened_model.model
    if not isinstance(network, Network):
        raise ModelError(
            f"{model.model}: a black box shows no neurons, so there is nothing to interpret. {opened_model.note}"
        )
    if card is None:
        options.warn_of_encoding_problem(opened_model, data, console)
    with progress_bar("Comparing rows with their twins", quiet=console.quiet) as show:
        profile = run(network, data.domain, data.rows, progress=show)
    worst = profile.worst
    ablation = ablate(network, data, worst.name, worst.biased, decision=opened_model.decision, seed=seed)
    console.print(make_layer_table(profile, data.domain))
    console.print(describe_profile(profile, ablation, data.domain))
    if plot is not None:
        title = f"{data.name}: reaction of the neurons to {join_words(data.domain.sensitive)}"
        with saved_figure(plot, size=(7.5, 6.2)) as figure:
            profile.plot(figure.add_subplot(), title=title)
        console.print(f"AS curves: {plot}", soft_wrap=True)
    output.write(
        options.make_result_header(data, opened_model)
        | {"rows": len(data), "domain_fingerprint": data.domain.fingerprint}
        | list_interpretation(profile, ablation)
    )


def _read_layer_sizes(text: str | None) -> list[int] | None:
    """Return the numbers in a list such as 64,32,16; None for no text."""
    try:
        sizes = [int(size) for size in options.split_names(text) or []]
    except ValueError:
        sizes = [0]
    if any(size < 1 for size in sizes):
        raise NeuronFairError(f"--hidden {text}: expected whole numbers above 0, such as 64,32,16")
    return sizes or None


SHARDS = "shards"  # in the run folder: pieces of an unfinished search
WEIGHTS = "model.safetensors"  # in the run folder: the classifier trained for it


@command(app, panel=RESEARCH, defaults={"data": ...}, omit=("columns",))
def search(
    table: options.TableOptions,
    model: options.ModelOptions,
    settings: SearchConfig,
    output: options.OutputOptions,
    out: Annotated[
        Path, option("Run folder to make, or to resume after an interruption.", panel=OUTPUT, metavar="FOLDER")
    ],
    population: Annotated[Path | None, option("Table of realistic records from your own sampler.")] = None,
    ray: options.RayOption = None,
    shards: Annotated[
        str | None,
        option("Folder or address (s3://…) for the shards of a long search. Default: OUT/shards.", metavar="ADDRESS"),
    ] = None,
    force: options.ForceOption = False,
) -> None:
    """Search for discriminatory instances: records whose decision flips with the attribute.

    The run folder holds all findings as Parquet files. After Ctrl-C or a kill the same command resumes. --ray searches
    on all cores or machines, with the same result.

    Example:

    `neuronfair search adult --sensitive sex --starts 200 --steps 200 --out run`
    """
    model.check()
    console = output.console()
    options.check_device(model.device)
    in_shards = _needs_shards(settings, out, ray, shards)
    options.check_run_folder(
        out, force, (table.data, model.model, model.weights, table.domain, population, table.attributes_file)
    )
    trained_here = model.model is None
    if trained_here and not force:
        model = replace(model, model=_find_trained_model(out))
    from neuronfair.audits.provenance import Provenance, find_score_scale, list_replay_options
    from neuronfair.domain.population.model import read_records
    from neuronfair.model.weights import save_weights
    from neuronfair.render.search import compose_search
    from neuronfair.searches.evaluate import counterfactuals_of, with_twins
    from neuronfair.searches.methods import check_method
    from neuronfair.store.ledger import discard, make_manifest, make_portable, rows_digest
    from neuronfair.store.run import Run

    opened_model, data, card = options.open_model_and_data(table, model, console, settings.seed)
    network, scale = opened_model.model, find_score_scale(opened_model, data)
    config = replace(settings, decision=opened_model.decision, scale=scale)
    check_method(config.method, network, config.decision)
    if not trained_here:
        options.warn_of_encoding_problem(opened_model, data, console)
    realistic_rows = data.rows if population is None else read_records(population, data.domain)
    manifest = make_manifest(
        config,
        data,
        model=WEIGHTS if trained_here else make_portable(str(model.model)),
        weights=opened_model.fingerprint,
        outputs=network.outputs,
        extra_weights=None if model.weights is None else str(model.weights.absolute()),
    )
    manifest["population"] = None if population is None else rows_digest(realistic_rows)
    counterfactuals = counterfactuals_of(with_twins(data.domain, data.rows, config.twins))  # before a folder is made
    if force:
        discard(out)
    run = Run.create_or_open(out, manifest, data.domain)
    if card is not None and opened_model.module is not None:  # trained now
        save_weights(out / WEIGHTS, opened_model.module, card)
    with options.make_pool(ray) as pool:
        sharding = (pool, shards) if in_shards else None
        outcome = _search_and_finish(network, data, config, run, console, realistic_rows, counterfactuals, sharding)
    provenance = Provenance(
        trained_here=trained_here, weights=model.weights, trust_pickle=model.trust_pickle, preprocess=model.preprocess
    )
    console.print(compose_search(outcome, network, out, list_replay_options(opened_model, provenance) or ()))
    output.write(_make_search_results(outcome, data))


def _search_and_finish(
    network: Model,
    data: Dataset,
    config: SearchConfig,
    run: Run,
    console: Console,
    realistic_rows: Any,
    counterfactuals: Any,
    sharding: tuple[Pool, str | None] | None,
) -> SearchResult:
    """Search with a progress bar; with `sharding`, in shards on a pool."""
    from neuronfair.domain.population.model import fit_population
    from neuronfair.render.terminal import progress_bar, stage_progress
    from neuronfair.searches import campaign
    from neuronfair.searches.forked import default_workers
    from neuronfair.store.shard_runner import ShardRunner

    with progress_bar("Fitting the population", quiet=console.quiet):
        population = run.population or fit_population(data.domain, realistic_rows)
    workers = default_workers()
    shard_runner = None
    if sharding is not None:
        shard_runner = ShardRunner(sharding[0], run.folder / SHARDS, sharding[1], run, workers)
    with stage_progress("Searching", quiet=console.quiet) as show:
        outcome = campaign.search(
            network,
            data.domain,
            data.rows,
            config,
            recorder=run,
            progress=show,
            runner=shard_runner or partial(campaign.in_one_piece, workers=workers),
            population=population,
            counterfactuals=run.counterfactuals or counterfactuals,
        )
    if not outcome.interrupted:
        run.finish(_make_search_results(outcome, data))
        if shard_runner is not None:
            shard_runner.remove()
    return outcome


def _make_search_results(outcome: SearchResult, data: Dataset) -> dict[str, object]:
    """Return the result of a search as JSON."""
    return options.make_result_header(data) | {"twins": outcome.config.twins} | outcome.summary()


def _needs_shards(settings: SearchConfig, out: Path, ray: str | None, shards: str | None) -> bool:
    """Return whether a search is cut into shards; refuse options that do not fit."""
    from neuronfair.store.shard_files import RemoteFolder
    from neuronfair.store.shard_runner import MAX_ROWS_IN_MEMORY

    if ray is not None and settings.seconds is not None:
        raise NeuronFairError("--seconds does not work with --ray: shards share no clock. Leave one of them out")
    if ray is not None:
        check_address(ray)
    is_sharded = settings.seconds is None and (
        settings.seeds * settings.steps > MAX_ROWS_IN_MEMORY or ray is not None or (out / SHARDS).exists()
    )
    if shards is not None:
        if not is_sharded:
            raise NeuronFairError(f"--shards {shards}: this search is too short for shards. Add --ray, or leave it out")
        RemoteFolder(shards).names()  # refuses an unusable address before the search
    return is_sharded


def _find_trained_model(out: Path) -> str | None:
    """Return the classifier that was trained for a run; None if there is none yet."""
    from neuronfair.store.ledger import JOURNAL
    from neuronfair.store.run import Run

    # Without a journal that has its digest, training was interrupted.
    run = Run.open(out) if (out / JOURNAL).exists() else None
    return read_own_model(run) if run is not None and run.manifest["model"] == WEIGHTS and run.model_digest else None


def _open_in_worker(source: options.ModelOptions, data: Dataset, folder: Path) -> Model:
    """Return the model, opened in a worker process; paths are relative to `folder`."""
    with chdir(folder):
        return source.source.open(data.to("cpu")).model


@command(
    app,
    panel=RESEARCH,
    defaults={"data": ..., "seeds": 100, "steps": 100},
    omit=("columns", "method", "controls", "plausible"),
)
def compare(
    table: options.TableOptions,
    model: options.ModelOptions,
    settings: SearchConfig,
    output: options.OutputOptions,
    methods: Annotated[
        str, option("Methods to compare: all, or names such as frontier,neuronfair-plus.", panel=INPUT)
    ] = "all",
    repeats: Annotated[int, option("Repetitions with other seeds, for confidence intervals.", low=1, panel=BUDGET)] = 1,
    plot: Annotated[Path | None, option("Draw the comparison (.png, .svg or .pdf).", panel=OUTPUT)] = None,
    ray: options.RayOption = None,
) -> None:
    """Compare search methods on one model, with the same budget for each.

    Controls run alongside: random records and, for methods that follow gradients, random directions. The lift of a
    method is its success rate divided by that of the strongest control. Audits use frontier and neuronfair-plus.

    Example:

    `neuronfair compare adult --sensitive sex --model adult.safetensors --plot methods.png`
    """
    model.check()
    from neuronfair.audits.comparison import compare_methods
    from neuronfair.plots import PICTURE_SUFFIXES, import_matplotlib
    from neuronfair.render.search import compose_comparison, plot_comparison
    from neuronfair.render.terminal import stage_progress
    from neuronfair.searches.methods import check_method, current_name, list_able

    options.check_out(plot, PICTURE_SUFFIXES)
    if plot is not None:
        import_matplotlib()
    console = output.console()
    chosen = None if methods == "all" else [current_name(name) for name in options.split_names(methods) or ()]
    for method in chosen or ():
        check_method(method)
    opened_model, data, _ = options.open_model_and_data(table, model, console, settings.seed)
    open_in_worker = None if model.model is None else partial(_open_in_worker, model, data, Path.cwd())
    with stage_progress("Comparing methods", quiet=console.quiet) as show, options.make_pool(ray) as pool:
        result = compare_methods(
            opened_model.model,
            data.domain,
            data.rows,
            list_able(opened_model.model) if chosen is None else chosen,
            replace(settings, decision=opened_model.decision),
            repeats=repeats,
            progress=show,
            opens=open_in_worker,
            pool=None if ray is None else pool,
        )
    console.print(compose_comparison(result, data.domain))
    if plot is not None:
        title = f"{data.name}, {join_words(data.domain.sensitive)}: {result.seeds:,} seeds"
        plot_comparison(result, plot, title=title)
        console.print(f"Picture: {plot}", soft_wrap=True)
    output.write(
        options.make_result_header(data, opened_model)
        | {
            "twins": settings.twins,
            "seeds": result.seeds,
            "steps": result.config.steps,
            "global_steps": result.config.global_steps,
            "run_seeds": list(range(settings.seed, settings.seed + repeats)),
            "rates": {
                rate.population: {"rate": rate.rate, "interval": rate.interval, "sampled": rate.sampled}
                for rate in result.rates
            },
            "strongest_control": None if result.strongest is None else result.strongest._asdict(),
            "interrupted": result.interrupted,
            "methods": result.methods(),
        }
    )
