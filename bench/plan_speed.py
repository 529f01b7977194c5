"""What a plan costs: sublight plan and AIConfigurator 0.12.0 on the same question, side by side.

    python bench/plan_speed.py --aic aic/bin/aiconfigurator [--runs 3]

AIConfigurator lives in a virtual environment of its own (`pip install aiconfigurator==0.12.0`). The two take turns,
each in a fresh process; the ratio is taken within a round. DeepSeek-V3 on 32 H200, 4,096 tokens in, 1,024 out, TTFT at
most 3 s, TPOT at most 50 ms, three engines, aggregated
serving (AIConfigurator searches disaggregated serving too unless told not to). Linux only: reads /proc.
"""

import argparse
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))
from peers import Cost, measure

SUBLIGHT = Path(sys.executable).with_name("sublight")
MODEL = "deepseek-ai/DeepSeek-V3"
OURS = ["plan", MODEL, "--gpus", "32xH200", "--isl", "4096", "--osl", "1024", "--slo", "ttft=3s,tpot=50ms",
        "--engines", "vllm,sglang,trtllm", "--format", "json"]
THEIRS = ["cli", "default", "--model-path", MODEL, "--total-gpus", "32", "--system", "h200_sxm", "--isl", "4096",
          "--osl", "1024", "--ttft", "3000", "--tpot", "50", "--backend", "auto", "--serving-mode", "agg", "--no-color"]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--aic", required=True, help="the aiconfigurator command of its environment")
    options.add_argument("--runs", type=int, default=3)
    asked = options.parse_args()
    rounds: list[tuple[Cost, Cost]] = []
    for index in range(asked.runs):
        ours, theirs = measure([str(SUBLIGHT), *OURS]), measure([asked.aic, *THEIRS])
        rounds.append((ours, theirs))
        print(f"round {index + 1}: sublight {ours.wall_s:.2f} s ({ours.cpu_s:.2f} CPU), AIConfigurator "
              f"{theirs.wall_s:.2f} s ({theirs.cpu_s:.2f} CPU), {theirs.wall_s / ours.wall_s:.1f} times "
              f"({theirs.cpu_s / ours.cpu_s:.1f} CPU)")
    print(f"median: {median(t.wall_s / o.wall_s for o, t in rounds):.1f} times as fast, CPU "
          f"{median(t.cpu_s / o.cpu_s for o, t in rounds):.1f} times")


if __name__ == "__main__":
    main()
