"""Train the tiny Flux base model on a CPU: ``vae``, ``transformer``, ``distil``, then ``export``.

Each phase keeps snapshots in ``--work`` and continues from the last one when it is run again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from plafond.assets.tiny_export import export
from plafond.assets.tiny_transformer import distil_guidance, train_transformer
from plafond.assets.tiny_vae import load_vae, train_vae


def main() -> None:
    """Run one phase."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("phase", choices=("vae", "transformer", "distil", "export"))
    parser.add_argument("--work", type=Path, required=True, help="folder of snapshots and rendered data")
    parser.add_argument("--minutes", type=float, default=25.0, help="training time of the phase")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "tiny-flux", help="export folder")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.phase == "vae":
        train_vae(arguments.work, arguments.minutes)
        return
    vae = load_vae(arguments.work)
    if arguments.phase == "transformer":
        train_transformer(arguments.work, vae, arguments.minutes)
    elif arguments.phase == "distil":
        distil_guidance(arguments.work, vae, arguments.minutes)
    else:
        export(arguments.work, vae, arguments.out)


if __name__ == "__main__":
    main()
