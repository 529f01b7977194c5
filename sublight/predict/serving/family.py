"""This file knows about families of models: whose measurements may not teach a constant that predicts one of them.

    >>> family("nvidia/DeepSeek-R1-0528-NVFP4"), family("meta-llama/Llama-3.3-70B-Instruct"), family("Qwen/Qwen3-32B")
    ('deepseek', 'llama-70b', 'qwen3-32b')
"""

from __future__ import annotations

import re

# Versions of one architecture and size are one family: what is learned on one is known of the other.
WHOLE = ("deepseek", "kimi", "minimax", "gpt-oss-120b", "gpt-oss-20b")
SIZE = re.compile(r"\d+(?:\.\d+)?b")
SERIES = re.compile(r"(qwen[\d.]*|glm-\d+(?:\.\d+)?|[a-z]+)")


def family(name: str) -> str:
    """The family of a model, by its name on the hub: series and size, without version, number format or tuning."""
    text = name.split("/")[-1].lower().removeprefix("meta-").replace("_", "-")
    for whole in WHOLE:
        if text.startswith(whole):
            return whole
    found = SERIES.match(text)
    series = found.group(1).removesuffix(".") if found else text
    if series.startswith("glm"):
        return series.split(".")[0]      # GLM-5, 5.1 … are one; GLM-4.5 and 4.6 too
    size = SIZE.search(text)
    return f"{series}-{size.group(0)}" if size else series
