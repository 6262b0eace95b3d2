"""`ssse init`, `fit`, `calibrate`, `erase`: from the user's files to an erased model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ssse.cli import messages
from ssse.cli.console import CAUTION, REFUSED, Screen, counted, facts, failures_in_one_line, failures_left_to_the_first
from ssse.cli.options import (
    STOPPED,
    By,
    Forget,
    Ids,
    Json,
    NoWait,
    Quiet,
    Set,
    Verbose,
    Where,
    factory_argument,
    given,
    listed,
    numbers,
    one_or_several,
    only,
    open_workspace,
    words,
)
from ssse.cli.wording import as_settings
from ssse.erasure.policy import Policy
from ssse.system.launcher import launched

Rows = Literal["auto", "expected", "margin", "empirical", "sampled"]
Structure = Literal["auto", "dense", "lowrank", "matrix_free", "diagonal", "recurrence"]
Fate = Literal["shred", "keep"]
Method = Literal["auto", "retrained", "attack_parity", "loss_search", "line_search"]
Damping = Annotated[float | None, typer.Option(help="λ; the weight decay if not given.")]


def init(
    workspace: Annotated[Path, typer.Argument(metavar="WORKSPACE", help="A folder that does not exist yet.")],
    weights: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Safetensors, or a .pt state dict of tensors alone; of scikit-learn .skops, or arrays in .npz.",
        ),
    ],
    data: Annotated[
        str,
        typer.Option(
            "--data",  # named here: some versions of typer take a metavar of the same letters for the name
            metavar="DATA",
            help="Training data: .npz, .safetensors, a folder of .npy, .csv, .parquet, or pkg.module:dataset.",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="PKG.MODULE:FACTORY",
            help="Makes the model; its weights are loaded afterwards. A .skops file says by itself what it is.",
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="cross_entropy, binary_cross_entropy, mse, or pkg.module:function.",
            show_default="cross_entropy",
        ),
    ] = None,
    argument: Annotated[
        list[str] | None,
        typer.Option("--argument", metavar="NAME=VALUE", help="Of the factory; repeatable. Values as in TOML."),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Test data: should do no worse after a request; and for `ssse evaluate`."),
    ] = None,
    inputs: Annotated[str | None, typer.Option(metavar="KEY,...", help="Where the inputs are, if not x.")] = None,
    labels: Annotated[str | None, typer.Option(metavar="KEY", help="Where the labels are, if not y.")] = None,
    ids: Annotated[
        str | None, typer.Option(metavar="KEY", help="Where the ids are, if not id; 'place': the place is the id.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Of labels that are words, in the model's order.")
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="w of the training objective (1/n) Σ loss + (w/2)‖θ‖².")
    ] = None,
    damping: Damping = None,
    rows: Annotated[Rows | None, typer.Option(help="What the curvature is made of.")] = None,
    structure: Annotated[Structure | None, typer.Option(help="How it is held.")] = None,
    parameters: Annotated[
        str | None, typer.Option(metavar="all|head|NAME,...", help="Which parameters requests may change.")
    ] = None,
    policy: Annotated[Policy | None, typer.Option(help="How requests follow on each other.")] = None,
    old_weights: Annotated[Fate | None, typer.Option(help="What becomes of the weights before a request.")] = None,
    old_curvature: Annotated[Fate | None, typer.Option(help="And of its curvature.")] = None,
    device: Annotated[str | None, typer.Option(metavar="auto|cpu|cuda", help="auto: a GPU where there is one.")] = None,
    key: Annotated[
        str | None, typer.Option(metavar="FILE", help="The private key that signs every entry; `ssse key` makes it.")
    ] = None,
    anchor: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file elsewhere, to which the head goes after every command.")
    ] = None,
    settings: Set = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Check model, weights, loss and data, and make a workspace of them."""
    screen = Screen(as_json, quiet, verbose)
    with failures_in_one_line("Stopped; nothing was written.", as_json), screen.alone():
        from ssse.workspace import settings as toml

        options = given(
            settings,
            **dict(map(factory_argument, argument or [])),
            model__factory=model,
            model__loss=loss,
            model__device=device,
            data__train=_seen_from(workspace, data),
            data__test=None if test is None else _seen_from(workspace, test),
            data__inputs=one_or_several(inputs),
            data__labels=labels,
            data__ids=ids,
            data__classes=words(classes),
            fit__weight_decay=weight_decay,
            fit__damping=damping,
            fit__rows=rows,
            fit__structure=structure,
            fit__parameters=one_or_several(parameters),
            erase__policy=policy,
            erase__old_weights=old_weights,
            erase__old_curvature=old_curvature,
            record__key=None if key is None else toml.elsewhere(key, workspace),
            record__anchor=None if anchor is None else toml.elsewhere(anchor, workspace),
        )
        chosen = toml.from_options({"model.search": toml.relative(".", workspace), **options})
        from ssse.workspace.workspace import Workspace

        created = Workspace.init(workspace, chosen, weights)
        screen.result(created.to_dict())
        screen.headline(f"Made the workspace {workspace}.")
        messages.created(screen, workspace, data, chosen, created.seen)
        screen.detail(
            facts(settings=workspace / toml.FILE, code=f"from {toml.absolute(chosen.model.search, workspace)}")
        )


def _seen_from(workspace: Path, data: str) -> str:
    """A path as the workspace sees it; pkg.module:dataset as it is, where no file is called like that."""
    from ssse.intake.importing import is_spec
    from ssse.workspace.settings import relative

    return data if is_spec(data) and not Path(data).exists() else relative(data, workspace)


def fit(
    workspace: Where,
    again: Annotated[bool, typer.Option("--again", help="Anew, on the data that remains.")] = False,
    when_needed: Annotated[
        bool,
        typer.Option("--when-needed", help="With --again: only if it spares the requests to come a fit. For cron."),
    ] = False,
    damping: Damping = None,
    rows: Annotated[Rows | None, typer.Option(help="What the curvature is made of.")] = None,
    structure: Annotated[Structure | None, typer.Option(help="How it is held.")] = None,
    settings: Set = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_wait: NoWait = False,
) -> None:
    """Compute the curvature, once, in one pass over the training data.

    Several processes fit together: torchrun --nproc-per-node 4 -m ssse fit WORKSPACE
    """
    from ssse.workspace.engines.processes import joined

    screen = Screen(as_json, quiet, verbose)
    with failures_in_one_line(STOPPED, as_json), screen.alone(), joined():
        if launched()[0] > 0:
            with failures_left_to_the_first():
                open_workspace(workspace, Screen(quiet=True)).take_part()
            return
        options = given(settings, fit__damping=damping, fit__rows=rows, fit__structure=structure)
        fitted = open_workspace(workspace, screen, no_wait).fit(options, again=again, when_needed=when_needed)
        shown = fitted.to_dict()
        details = shown["entry"]["details"]
        screen.result(shown)
        if fitted.now and not (again or when_needed):  # no request yet, of whose samples a number could tell
            details |= {name: fitted.entry.details[name] for name in ("doubts", "notes")}
        for doubt in details.get("doubts", ()) if fitted.now else ():
            screen.warn(as_settings(doubt))
        if not fitted.now and when_needed:
            screen.headline(f"Fitted on {fitted.entry.time}, and nothing since then calls for a new curvature.")
            return
        if not fitted.now:
            screen.headline(f"Fitted already, on {fitted.entry.time}; --again fits anew on the data that remains.")
            return
        what = f"{counted(details['n'], 'sample')}, {counted(details['d'], 'parameter')}"
        screen.headline(f"Fitted {what} in {details['seconds']:.1f} s.")
        messages.fitted(screen, workspace, details)
        for note in details["notes"]:
            if note not in details["doubts"]:
                screen.tell(f"note: {as_settings(note)}")


def calibrate(
    workspace: Where,
    forget: Forget = None,
    ids: Ids = None,
    retrained: Annotated[Path | None, typer.Option(metavar="FILE", help="Weights retrained without them.")] = None,
    held_out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Samples of the same kind, never trained on.")
    ] = None,
    whole_class: Annotated[bool | None, typer.Option("--whole-class", help="They are all of their kind.")] = None,
    method: Annotated[Method | None, typer.Option(help="auto: by the strongest evidence given.")] = None,
    scales: Annotated[str | None, typer.Option(metavar="ε,...", help="To look at, rising.")] = None,
    dampings: Annotated[str | None, typer.Option(metavar="λ,...", help="To look at beside them.")] = None,
    settings: Set = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_wait: NoWait = False,
) -> None:
    """Choose ε, and λ beside it, on samples like those of the requests to come. Nothing is erased."""
    screen = Screen(as_json, quiet, verbose)
    with failures_in_one_line(STOPPED, as_json), screen.alone():
        options = given(
            settings,
            calibrate__method=method,
            calibrate__whole_class=whole_class,
            calibrate__scales=numbers(scales, "--scales"),
            calibrate__dampings=numbers(dampings, "--dampings"),
        )
        from ssse.workspace.record.describe import epsilon

        calibrated = open_workspace(workspace, screen, no_wait).calibrate(
            forget=only(forget), ids=listed(ids), retrained=retrained, held_out=held_out, options=options
        )
        shown = calibrated.to_dict()
        details = shown["entry"]["details"]
        screen.result(shown)
        screen.headline(f"{epsilon(details)}, λ = {details['damping']:.3g}; stored with the curvature.")
        screen.tell(facts(by=details["method"], because=details["reason"], samples=details["k"]))
        if calibrated.entry.details["replaces"]:
            screen.tell("It replaces the ε that was chosen before.")
        if details["curve"]:
            screen.tell(messages.curve(details["curve"], details["scale"]))
        messages.numbers_in_the_ledger(screen, workspace, details["k"])


def erase(
    workspace: Where,
    request: Annotated[str, typer.Option(metavar="ID", help="Of the request: your own number or name for it.")],
    forget: Forget = None,
    ids: Ids = None,
    scale: Annotated[float | None, typer.Option(help="ε; the calibrated one if not given, else 1.")] = None,
    leave_out: Annotated[
        bool | None, typer.Option("--leave-out/--no-leave-out", help="Curvature over what stays, or the paper's.")
    ] = None,
    policy: Annotated[Policy | None, typer.Option(help="How requests follow on each other.")] = None,
    accept: Annotated[Literal["ok", "caution"] | None, typer.Option(help="The least verdict to apply.")] = None,
    old_weights: Annotated[Fate | None, typer.Option(help="What becomes of the weights before.")] = None,
    old_curvature: Annotated[Fate | None, typer.Option(help="And of the curvature.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compute and say all, and change nothing.")] = False,
    override: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BOUND",
            help="Also take a step that breaks this bound: stationarity, share, step, leverage or probe. Repeatable; "
            "the ledger says which were broken.",
        ),
    ] = None,
    due: Annotated[
        str | None, typer.Option(metavar="YYYY-MM-DD", help="The day by which it is to be answered; recorded.")
    ] = None,
    by: By = None,
    settings: Set = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_wait: NoWait = False,
) -> None:
    """Answer one deletion request: erase its samples, or refuse it with the reason."""
    screen = Screen(as_json, quiet, verbose)
    with failures_in_one_line(STOPPED, as_json), screen.alone():
        options = given(
            settings,
            erase__scale=scale,
            erase__leave_out=leave_out,
            erase__policy=policy,
            erase__accept=accept,
            erase__old_weights=old_weights,
            erase__old_curvature=old_curvature,
        )
        erased = open_workspace(workspace, screen, no_wait).erase(
            request,
            forget=only(forget),
            ids=listed(ids),
            options=options,
            dry_run=dry_run,
            override=override or (),
            due=due,
            by=by,
        )
        screen.result(erased.to_dict())
        if erased.outcome == "repeated":
            screen.headline(erased.reason)
            return
        if erased.outcome == "refused":
            screen.headline(f"Refused: {as_settings(erased.shown_reason)}")
            if erased.measured and not dry_run:
                messages.numbers_in_the_ledger(screen, workspace, None, request)
            screen.tell("Nothing was written." if dry_run else "The model is as it was. The refusal is in the ledger.")
            raise typer.Exit(REFUSED)
        for other, count in erased.already.items():
            which = "sample was" if count == 1 else "samples were"
            fate = "would be left out" if dry_run else "left out"
            screen.tell(f"{count:,} {which} erased already, by request '{other}'; {fate}.")
        messages.erased(screen, workspace, request, erased.shown_details, erased.held, dry_run)
        messages.held(screen, workspace, erased, dry_run)
        if erased.details["verdict"] != "ok":
            raise typer.Exit(CAUTION)
