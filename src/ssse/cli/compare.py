"""`ssse compare`: methods side by side on the user's own model and data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ssse.cli.console import Screen, failures_in_one_line
from ssse.cli.options import Forget, Ids, Json, Quiet, factory_argument, given, listed, one_or_several, only, words
from ssse.errors import InvalidSetting

STOPPED = "Stopped; nothing was written."


def compare(
    model: Annotated[str, typer.Option(metavar="PKG.MODULE:FACTORY", help="Makes the model, as for `ssse init`.")],
    weights: Annotated[Path, typer.Option(metavar="FILE", help="Safetensors, or a .pt state dict of tensors alone.")],
    data: Annotated[str, typer.Option("--data", metavar="DATA", help="Training data, as for `ssse init`.")],
    forget: Forget = None,
    ids: Ids = None,
    test: Annotated[str | None, typer.Option(metavar="DATA", help="Samples that were never trained on.")] = None,
    loss: Annotated[
        str | None, typer.Option(metavar="NAME", help="As for `ssse init`.", show_default="cross_entropy")
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="w of the training objective (1/n) Σ loss + (w/2)‖θ‖².")
    ] = None,
    retrain: Annotated[
        str | None,
        typer.Option(metavar="PKG.MODULE:FUNCTION", help="From a list of batches (x, y) to a newly trained model."),
    ] = None,
    retrained: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Weights trained without S before; repeatable.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many models --retrain trains; two give a noise floor.")] = 1,
    methods: Annotated[str, typer.Option(metavar="usual|all|NAME;…", help="Which methods; names with ; between.")] = (
        "usual"
    ),
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the figure here: .svg, .png or .pdf.")
    ] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write everything here as JSON.")] = None,
    parameters: Annotated[
        str | None, typer.Option(metavar="all|head|NAME,...", help="Which parameters may change.")
    ] = None,
    argument: Annotated[
        list[str] | None, typer.Option("--argument", metavar="NAME=VALUE", help="Of the factory; repeatable.")
    ] = None,
    inputs: Annotated[str | None, typer.Option(metavar="KEY,...", help="Where the inputs are, if not x.")] = None,
    labels: Annotated[str | None, typer.Option(metavar="KEY", help="Where the labels are, if not y.")] = None,
    id_key: Annotated[str | None, typer.Option("--id-key", metavar="KEY", help="Where the ids are, if not id.")] = None,
    classes: Annotated[str | None, typer.Option(metavar="NAME,...", help="Of labels that are words.")] = None,
    device: Annotated[str | None, typer.Option(metavar="auto|cpu|cuda", help="auto: a GPU where there is one.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Erase samples with every method, and put them beside each other: accuracy, distance from retraining, seconds."""
    screen = Screen(as_json, quiet)
    with failures_in_one_line(STOPPED, as_json), screen.alone():
        if figure is not None and figure.suffix.lower() not in (".svg", ".png", ".pdf"):
            raise InvalidSetting(f"--figure writes .svg, .png or .pdf, not '{figure.name}'.")
        options = given(
            None,
            **dict(map(factory_argument, argument or [])),
            model__factory=model,
            model__loss=loss,
            model__device=device,
            data__train=data,
            data__test=test,
            data__inputs=one_or_several(inputs),
            data__labels=labels,
            data__ids=id_key,
            data__classes=words(classes),
            fit__weight_decay=weight_decay,
            fit__parameters=one_or_several(parameters),
        )
        from ssse.workspace import settings as toml
        from ssse.workspace.commands.compare import compare_files

        chosen = methods if methods in ("usual", "all") else [name.strip() for name in methods.split(";")]
        done = compare_files(
            toml.from_options({"model.search": ".", **options}),
            weights,
            forget=only(forget),
            ids=listed(ids),
            retrain=retrain,
            retrained=retrained or [],
            seeds=seeds,
            methods=chosen,
            progress=screen.progress,
        )
        drawn = None if figure is None else _drawn(done.figure(), figure.suffix.lower()[1:])
        from ssse.system.files import write_atomically

        if figure is not None and drawn is not None:
            write_atomically(figure, drawn)
        if output is not None:
            write_atomically(output, json.dumps(done.to_dict(), indent=1, ensure_ascii=False) + "\n")
        screen.result(done.to_dict())
        if quiet:
            screen.headline(f"Compared {len(done.models)} methods.")
        screen.tell(str(done))
        for what, path in (("figure", figure), ("numbers", output)):
            if path is not None:
                screen.tell(f"The {what}: {path}")


def _drawn(figure: Any, form: str) -> bytes:
    import io

    written = io.BytesIO()
    figure.savefig(written, format=form, dpi=150)
    return written.getvalue()
