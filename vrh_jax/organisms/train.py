"""``vrh organism train``: reproduce the shipped organisms from a configuration."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from model_ports.errors import UserError
from vrh_jax.organisms.config import OrganismConfig, read_config
from vrh_jax.organisms.record import compare, write_record


def train(
    config: Path,
    out: Path,
    *,
    models: Sequence[str] = (),
    show: Callable[[str], None] = print,
) -> list[Path]:
    """Train backbones and VLMs; an interrupted run continues with identical weights.

    Args:
        config: YAML, see ``configs/organism_train.yaml``.
        out: gets ``<model>/`` (Hugging Face folders), ``checkpoints/`` and ``training.json``.
        models: only these and the backbones they need; all by default.

    Returns:
        The folders of the trained models.

    Raises:
        UserError: bad configuration, unknown model, ``out`` of another configuration, or a
            loss that is not finite.
    """
    settings = read_config(config)
    chosen = list(models) or list(settings.models)
    unknown = sorted(set(chosen) - set(settings.models))
    if unknown:
        raise UserError(
            f"{config} has no model {', '.join(unknown)}; it has {', '.join(settings.models)}"
        )
    _claim(out, settings)
    backbones: dict[str, Any] = {}
    for name in chosen:
        needed = settings.models[name].backbone
        if needed not in backbones:
            backbones[needed] = _backbone(settings, needed, out, show)
        _model(settings, name, backbones[needed], out, show)
        record = write_record(out, settings, [name])
        study = f"in a study: {{source: {out / name}, prompts: organism}}"
        show(f"{name}: written to {out / name} ({study}); {compare(record, name)}")
    return [out / name for name in chosen]


def _claim(out: Path, settings: OrganismConfig) -> None:
    """Refuse to continue another configuration's run."""
    record = out / "config.json"
    text = settings.model_dump_json(indent=2) + "\n"
    if record.is_file() and record.read_text() != text:
        raise UserError(
            f"{out} holds a run of another configuration; choose another --out, or remove it"
        )
    out.mkdir(parents=True, exist_ok=True)
    record.write_text(text)


def _backbone(
    settings: OrganismConfig, name: str, out: Path, show: Callable[[str], None]
) -> dict[str, Any]:
    from vrh_jax.organisms.backbone import backbone_phase
    from vrh_jax.organisms.phases import run_phase

    backbone = settings.backbones[name]
    trained: dict[str, Any] = run_phase(
        backbone_phase(name, settings.decoder, backbone),
        out,
        seed=backbone.seed,
        muon_lr=settings.muon_lr,
        adam_lr=settings.adam_lr,
        save_every=settings.save_every,
        show=show,
    )
    return trained


def _model(
    settings: OrganismConfig,
    name: str,
    backbone: dict[str, Any],
    out: Path,
    show: Callable[[str], None],
) -> None:
    from model_ports.convert.export import write_params
    from vrh_jax.organisms.folder import LAYOUTS
    from vrh_jax.organisms.phases import Phase, run_phase
    from vrh_jax.organisms.vision import Rig, align_phase, tower_phase, tune_phase

    model = settings.models[name]
    rig = Rig.build(name, model, settings.decoder, out / name, settings.seed)

    def run(phase: Phase) -> Any:
        return run_phase(
            phase,
            out,
            seed=settings.seed,
            muon_lr=settings.muon_lr,
            adam_lr=settings.adam_lr,
            save_every=settings.save_every,
            show=show,
        )

    tower = run(tower_phase(rig))
    aligned = run(align_phase(rig, tower, backbone))
    tuned = run(tune_phase(rig, aligned, backbone))
    write_params(out / name, rig.port, rig.config, tuned, layout=LAYOUTS[model.style])
