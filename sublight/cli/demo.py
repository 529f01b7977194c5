"""`sublight demo`: explain the traces that come with the package, offline."""

from __future__ import annotations

import argparse
from typing import Any

PLANTED_STALL_MS = 25        # what examples/record_demo.py slept on rank 0 in each step


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "demo", help="explain two bundled traces, offline",
        description="Explain a recorded CPU-only training run with a planted stall, then a hand-written GPU step.",
    )
    command.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Both first screens, each introduced by what is known of its trace."""
    from importlib import resources

    from sublight.cli.output import console as output_console
    from sublight.explain import explain
    from sublight.explain.findings import host_stall
    from sublight.explain.words import ms
    from sublight.observe.read import read_all
    from sublight.show.terminal import first_screen

    folder = resources.files("sublight") / "demo"
    console = output_console()
    with resources.as_file(folder) as path:
        cpu = explain(read_all([path / "cpu_lm_rank0.json.gz"]))
        gpu = explain(read_all([path / "gpu_step.json.gz"]))
    console.print("[bold]1. A real recording, CPU-only:[/] a small language model trained by two gloo ranks.")
    console.print(f"Planted: rank 0 sleeps {PLANTED_STALL_MS} ms in each of its 4 steps, unannotated.\n")
    first_screen(cpu.devices[0], cpu, console, brief=True)
    stall = next((f for f in cpu.devices[0].findings if f.code == host_stall.CODE), None)
    if stall is not None and stall.gain_ns_at_most:
        console.print(f"[bold]Found {ms(stall.gain_ns_at_most)}, "
                      f"{ms(stall.gain_ns_at_most // len(cpu.devices[0].view.steps))} a step; "
                      f"{PLANTED_STALL_MS} ms were planted.[/]")
    console.print("\n[bold]2. A hand-written GPU trace:[/] three training steps, faults of known size.\n")
    first_screen(gpu.devices[0], gpu, console, brief=True)
    return 0
