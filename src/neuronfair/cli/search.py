"""Commands that find discriminatory instances and show them again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from neuronfair.cli import options, tables
from neuronfair.cli.app import app, warn_of_encoding
from neuronfair.cli.options import RayOption, TwinsKind, TwinsOption, check_ray, pool_of
from neuronfair.cli.trust import own_model
from neuronfair.errors import NeuronFairError, RunError
from neuronfair.searches.plugins import registered

# Once: typer reads the options of every command four times a call.
_OTHERS = "".join(f", or {point.name} of another package" for point in registered())
SHARDS = "shards"  # in the run folder: where pieces of a search are, meanwhile
WEIGHTS = "model.safetensors"  # in the run folder: the classifier that was trained for this run


@app.command()
def search(
    data: options.DataArgument,
    out: Annotated[Path, typer.Option(help="Run folder to make, or to go on with after an interruption.")],
    sensitive: options.SensitiveOption = None,
    encoding: options.EncodingOption = "default",
    model: options.ModelOption = None,
    weights: options.WeightsOption = None,
    preprocess: options.PreprocessOption = None,
    trust_pickle: options.TrustOption = False,
    decision: options.DecisionOption = None,
    domain: options.DomainOption = None,
    target: options.TargetOption = None,
    attributes_file: tables.AttributesFileOption = None,
    key: tables.KeyOption = None,
    method: Annotated[
        str,
        typer.Option(
            help="frontier, neuronfair, neuronfair-paper, eidig5, eidiginf, adf, frontier-free, symbgen, expga, "
            f"aequitas, aequitas-semi, aequitas-random or uniform{_OTHERS}."
        ),
    ] = "frontier",
    seeds: Annotated[int, typer.Option(min=0, help="How many rows to start from.")] = 1000,
    steps: Annotated[
        int, typer.Option(min=0, help="Steps of the local phase, after a look at the row it starts from.")
    ] = 1000,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop after so many seconds.")] = None,
    twins: TwinsOption = TwinsKind.flip,
    plausible: options.PlausibleOption = 0.0,
    population: options.PopulationOption = None,
    controls: Annotated[
        bool, typer.Option(help="Also judge as many random rows, and walk in random directions.")
    ] = True,
    ray: RayOption = None,
    shards: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Where the pieces of a long search, or one with --ray, keep their files meanwhile: a folder or an "
            "address (s3://…) that all machines reach. Default: OUT/shards.",
        ),
    ] = None,
    force: options.ForceOption = False,
    json_file: options.JsonOption = None,
    device: options.DeviceOption = "cpu",
    seed: options.SeedOption = 0,
    quiet: options.QuietOption = False,
) -> None:
    """Find people whose decision changes when only the sensitive attribute changes, or unlike their counterparts'.

    Everything found is in the run folder as Parquet files. After Ctrl-C or a kill the same command goes on. With --ray,
    all cores or machines search, and find the same.

    Examples:

    `neuronfair search adult --sensitive sex --seeds 200 --steps 200 --out run`

    `neuronfair search adult --sensitive sex --twins counterpart --out run`
    """
    source = options.ModelOptions(model, weights, trust_pickle, decision, device, preprocess)
    from neuronfair.audits.folder import check_writable, refuse_links
    from neuronfair.audits.provenance import Origin, replay_options, score_scale
    from neuronfair.domain.population.model import fit_population, read_people
    from neuronfair.model.weights import save
    from neuronfair.render.search import search_report
    from neuronfair.render.terminal import make_console, progress_bar
    from neuronfair.searches import campaign
    from neuronfair.searches.campaign import in_one_piece
    from neuronfair.searches.config import SearchConfig
    from neuronfair.searches.evaluate import comparing, counterparts_of
    from neuronfair.searches.methods import check_method
    from neuronfair.store.ledger import check_discardable, check_folder, discard
    from neuronfair.store.manifest import make_manifest, rows_digest, where
    from neuronfair.store.remote import RemoteFolder
    from neuronfair.store.run import Run
    from neuronfair.store.sharding import LONG, ShardRunner

    options.check_out(json_file, or_stdout=True)
    options.check_device(device)
    if ray is not None and seconds is not None:
        raise NeuronFairError("--seconds cannot be had with --ray: pieces of a search do not know how long others took")
    check_ray(ray)
    apart = seconds is None and (seeds * steps > LONG or ray is not None or (out / SHARDS).exists())
    if shards is not None:
        if not apart:
            raise NeuronFairError(f"--shards {shards}: such a short search has no pieces. Say --ray, or leave it out")
        RemoteFolder(shards).names()  # an address that cannot be used is refused now
    if force:
        check_discardable(out, (data, model, weights, domain, population, attributes_file))
    else:
        check_folder(out)
        refuse_links(out)
    check_writable(out)
    console = make_console(quiet=quiet or options.is_stdout(json_file))
    config = SearchConfig(
        method=method,
        seeds=seeds,
        steps=steps,
        seconds=seconds,
        seed=seed,
        controls=controls,
        plausible=plausible,
        twins=twins.value,
    )
    if model is None and not force:
        source = replace(source, model=_trained(out))
    beside = tables.JoinOptions.of(attributes_file, key)
    table = tables.load_data(data, encoding, domain, sensitive, target, source, beside=beside).data
    opened, table, card = source.open_or_train(table, console, seed)
    network, config = opened.model, replace(config, decision=opened.decision, scale=score_scale(opened, table))
    check_method(method, network, config.decision)
    people = table.rows if population is None else read_people(population, table.domain)
    if model is not None:
        warn_of_encoding(opened, table, console)
    manifest = make_manifest(
        config,
        table,
        model=where(model) if model else WEIGHTS,
        weights=opened.fingerprint,
        outputs=network.outputs,
        extra_weights=None if weights is None else str(weights.absolute()),
    )
    manifest["population"] = None if population is None else rows_digest(people)
    fitted = counterparts_of(comparing(table.domain, table.rows, config.twins))  # refused before a folder is made
    if force:
        discard(out)
    run = Run.create_or_open(out, manifest, table.domain, network.outputs)
    if card is not None and opened.module is not None:  # trained just now: the run folder keeps it
        save(out / WEIGHTS, opened.module, card)
    with progress_bar("Looking who is usual", quiet=console.quiet):
        usual = run.population or fit_population(table.domain, people)
    with pool_of(ray) as pool, progress_bar("Looking for discrimination", quiet=console.quiet) as show:
        sharded = ShardRunner(pool, out / SHARDS, shards, run)
        outcome = campaign.search(
            network,
            table.domain,
            table.rows,
            config,
            recorder=run,
            progress=lambda what, done, total, note="": show(done, total, note, what=what),
            runner=sharded if apart else in_one_piece,
            population=usual,
            counterparts=run.counterparts or fitted,
        )
    result = {"data": table.name, "encoding": table.domain.encoding, "sensitive": list(table.domain.sensitive)}
    result |= {"twins": config.twins} | outcome.summary()
    if not outcome.interrupted:
        run.finish(result)
        if apart:
            sharded.remove()
    told = Origin(trained_here=model is None, weights=weights, trust_pickle=trust_pickle, preprocess=preprocess)
    again = replay_options(opened, told)
    console.print(search_report(outcome, network, out, again or ()))
    if json_file is not None:
        options.write_json(json_file, result)


@app.command()
def replay(
    run_folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder of 'neuronfair search' or 'neuronfair audit'.")
    ],
    number: Annotated[int, typer.Argument(metavar="N", min=0, help="The number of a finding, from 0.")],
    model: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="Another model to try it on. Default: that of the run.")
    ] = None,
    weights: options.WeightsOption = None,
    preprocess: options.PreprocessOption = None,
    trust_pickle: options.TrustOption = False,
) -> None:
    """Show one finding in human words and say whether it still holds.

    A counterpart is shown with all that differs, and with how many of the person's drawn counterparts are decided
    otherwise.
    A finding that an audit lists among the worst is shown as found, then shrunk as the audit shows it. The model of the
    run is opened by itself only if its file is unchanged; Python code and pickles only if you name them with --model.

    Example: `neuronfair replay run 17 --model retrained.safetensors`
    """
    from neuronfair.model.decision import Decision
    from neuronfair.model.open import open_model
    from neuronfair.render.search import replay_report
    from neuronfair.render.terminal import make_console
    from neuronfair.store.run import Run

    if trust_pickle and model is None:
        raise NeuronFairError("--trust-pickle: name the file that you trust with --model")
    run = Run.open(run_folder)
    findings = run.findings()
    if number >= len(findings):
        raise RunError(f"{run_folder}: has {len(findings):,} findings, numbered from 0; there is no number {number}")
    source = model or own_model(run)
    opened = open_model(
        source,
        run.domain,
        findings.rows,
        weights=weights,
        trust_pickle=trust_pickle,
        preprocess=preprocess,
        decision=Decision(**run.manifest["plan"]["decision"]),
    )
    network = opened.model.double()
    if network.outputs != run.outputs:
        raise RunError(f"{source}: has {network.outputs} outputs, but {run_folder} was made with {run.outputs}")
    same = opened.fingerprint == run.manifest["weights"]
    if model is None and not same:  # its file is the same: it reads another one
        raise RunError(f"{source}: is not the model that {run_folder} was made with. To try it, say --model {source}")
    console = make_console()
    console.print(replay_report(run, network, number, same_weights=same), soft_wrap=True)


def _trained(out: Path) -> str | None:
    """Return the classifier that was trained for the run in a folder; None if there is none yet."""
    from neuronfair.store.journal import JOURNAL
    from neuronfair.store.run import Run

    # Without a journal, or a digest of the model in it, a kill came before the search: it is trained again.
    run = Run.open(out) if (out / JOURNAL).exists() else None
    return own_model(run) if run is not None and run.manifest["model"] == WEIGHTS and run.model_digest else None
