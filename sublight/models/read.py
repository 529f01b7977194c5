"""This file knows about where a model's config lies: a file, a folder, a catalog of facts, the Hugging Face hub."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from sublight.errors import InputError
from sublight.models.config import Fields
from sublight.models.families import FAMILIES, Source
from sublight.models.model import Model
from sublight.models.quantisation import quantisation

MOST_BYTES = 64 << 20                    # the largest config that we know of has 3 MB
SIDECAR = "hf_quant_config.json"


def read(path: str | Path) -> Model:
    """The model of a config.json, or of the folder that holds one, with hf_quant_config.json beside it where it is.

    Raises InputError for a file that is no config, an architecture that is not known, and a key that may change the
    work and that nothing here reads.
    """
    path = Path(path)
    config = path / "config.json" if path.is_dir() else path
    if not config.is_file():
        raise InputError(f"{path}: expected a config.json or a folder that holds one, found none")
    values = _json(config)
    other = config.name.replace("config.json", SIDECAR) if config.name.endswith("config.json") else SIDECAR
    beside = config.with_name(other)
    name = path.name if path.is_dir() else config.stem if config.name != "config.json" else config.parent.name
    return from_config(values, name=name.removesuffix("_config").replace("--", "/"), where=str(config.name),
                       sidecar=_json(beside) if beside.is_file() else None)


def from_config(values: object, *, name: str, where: str = "config.json", sidecar: object = None) -> Model:
    """The model that the values of a config say, with those of its hf_quant_config."""
    config = Fields(values, where)
    architecture = _architecture(config)
    text = next((config.part(key) for key in ("text_config", "llm_config") if config.has(key)), config)
    return FAMILIES[architecture](Source(name, architecture, config, text, quantisation(config, text, sidecar)))


def _architecture(config: Fields) -> str:
    names = config.raw("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise InputError(f"{config.where}: 'architectures' is missing: which layers the model has is not said")
    if names[0] not in FAMILIES:
        near = difflib.get_close_matches(names[0], FAMILIES, 3, 0.6) or sorted(FAMILIES)
        raise InputError(f"{config.where}: architecture '{names[0]}' is not known; nearest: {', '.join(near)}. What is "
                         "missing: its layers, their weights and their operators")
    return str(names[0])


def _json(path: Path) -> Any:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path.name}: {path.stat().st_size} bytes; a config has at most {MOST_BYTES}")
        return json.loads(path.read_text("utf-8"), parse_constant=_number)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path.name} is no JSON text: {error}") from None
    except RecursionError:
        raise InputError(f"{path.name}: objects in objects without end; a config has a few") from None
    except ValueError as error:          # an integer of thousands of digits
        raise InputError(f"{path.name}: {error}") from None
    except OSError as error:
        raise InputError(f"{path.name}: {error.strerror or error}") from None


def _number(name: str) -> float | None:
    """Infinity stands in limits of Mamba's time step; not a number stands for nothing."""
    return {"Infinity": float("inf"), "-Infinity": float("-inf")}.get(name)


@cache
def catalog() -> Mapping[str, Mapping[str, Any]]:
    """Facts of common models: catalog/models.toml, by name."""
    text = resources.files("sublight.catalog").joinpath("models.toml").read_text("utf-8")
    return tomllib.loads(text)


@cache
def named(name: str) -> Model:
    """A model of the bundled catalog, by its name on the hub. Raises InputError naming the nearest."""
    rows = catalog()
    by_lower = {key.lower(): key for key in rows}
    key = by_lower.get(name.lower())
    if key is None:
        near = difflib.get_close_matches(name.lower(), by_lower, 3, 0.5)
        known = ", ".join(by_lower[n] for n in near) or f"{len(rows)} models, among them {', '.join(list(rows)[:3])}"
        raise InputError(f"no model '{name}' in the catalog; nearest: {known}; a config.json or its folder works too")
    return from_config(_merged(rows, key), name=key, where=f"catalog: {key}")


def _merged(rows: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, Any]:
    """A row with what it takes over from another one ("like")."""
    row = {k: v for k, v in rows[key].items() if k not in ("source", "like")}
    return {**_merged(rows, rows[key]["like"]), **row} if "like" in rows[key] else row


def hub(name: str) -> Model:
    """A model of the Hugging Face hub: its config and sidecar, downloaded by huggingface_hub (which must be there)."""
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError
    except ImportError:
        raise InputError(f"{name}: not in the catalog, and huggingface_hub is not installed: pip install "
                         "huggingface_hub, or download the model's config.json and name the file") from None
    try:
        config = hf_hub_download(name, "config.json")
    except Exception as error:           # many kinds: offline, gated, unknown, refused
        raise InputError(f"{name}: the hub gave no config.json ({type(error).__name__}); online, and its name right? "
                         "Or download it and name the file") from None
    try:
        sidecar = _json(Path(hf_hub_download(name, SIDECAR)))
    except (EntryNotFoundError, OSError):
        sidecar = None
    return from_config(_json(Path(config)), name=name, where=f"{name}: config.json", sidecar=sidecar)


def find(text: str) -> Model:
    """A path, a name of the catalog, or a name of the hub, in that order."""
    if Path(text).exists():
        return read(text)
    if text.lower() in (key.lower() for key in catalog()):
        return named(text)
    if text.count("/") == 1 and not text.startswith((".", "/", "~")) and not text.endswith(".json"):
        return hub(text)
    return named(text)                   # its error names the nearest
