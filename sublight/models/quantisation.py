"""This file knows about quantisation: which modules of a checkpoint lie in which number format, as a config says it.

    quantization_config   of Hugging Face: fp8, mxfp4, awq, gptq, compressed-tensors, modelopt
    hf_quant_config.json  of modelopt, beside the config
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sublight.errors import InputError
from sublight.models.config import Fields
from sublight.models.formats import (
    BF16,
    FP8,
    FP8_BLOCK,
    INT8,
    MXFP4,
    MXFP4_FP8,
    MXFP8,
    NVFP4,
    NVFP4_WEIGHTS,
    NumberFormat,
    fp8_block,
    int4,
)

# Where the layers of a checkpoint hang; patterns of producers name one of them.
PREFIXES = ("model.layers.", "model.language_model.layers.", "language_model.model.layers.", "backbone.layers.",
            "layers.", "language_model.layers.")
DRAFT_PREFIXES = ("mtp.layers.", "mtp.", "model.mtp.layers.", "language_model.mtp.layers.")


@dataclass(frozen=True)
class Patterns:
    """Names of modules as producers write them: whole, with * (fnmatch), with re: (compressed-tensors), or a part."""

    whole: frozenset[str]
    starts: tuple[str, ...]
    regex: re.Pattern[str] | None
    parts: tuple[str, ...]               # ".gate.": a component anywhere in a path

    @classmethod
    def of(cls, texts: Iterable[str], where: str) -> Patterns:
        whole, starts, regexes, parts = set(), [], [], []
        for text in texts:
            if text.startswith("re:"):
                regexes.append(text[3:])
            elif text.endswith("*") and not re.search(r"[*?\[]", text[:-1]):
                starts.append(text[:-1])
            elif re.search(r"[*?\[]", text):
                regexes.append(fnmatch.translate(text) + "|" + fnmatch.translate(text + ".*"))
            elif "layers." in text:
                whole.add(text)
            else:
                parts.append(f".{text}.")
        try:
            regex = re.compile("|".join(f"(?:{text})" for text in regexes)) if regexes else None
        except re.error as error:
            raise InputError(f"{where}: a pattern of modules is no regular expression ({error})") from None
        return cls(frozenset(whole), tuple(starts), regex, tuple(parts))

    def match(self, path: str) -> bool:
        dotted = f".{path}."
        return (any(head in self.whole for head in heads(path)) or (bool(self.starts) and path.startswith(self.starts))
                or any(part in dotted for part in self.parts)
                or (self.regex is not None and self.regex.match(path) is not None))


def heads(path: str) -> Iterator[str]:
    """A path and the modules that hold it, from the inside out."""
    yield path
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


NOTHING = Patterns(frozenset(), (), None, ())


@dataclass(frozen=True)
class Quantisation:
    """The number format of each module: the first rule that matches, else the default, unless it is kept."""

    name: str = "none"
    default: NumberFormat = BF16
    stored: NumberFormat = BF16          # of what is not quantised
    kept: Patterns = NOTHING
    rules: tuple[tuple[Patterns, NumberFormat], ...] = ()
    kv: str = "bf16"
    where: str = "config"

    def form(self, layer: int, *modules: str, draft: int | None = None) -> NumberFormat:
        """Of the modules of a layer that are multiplied as one. Raises InputError where their formats differ."""
        found = {self._one([f"{prefix}{layer}.{module}" for prefix in PREFIXES] + (
            [] if draft is None else [f"{prefix}{draft}.{module}" for prefix in DRAFT_PREFIXES])) for module in modules}
        if len(found) > 1:
            names = ", ".join(sorted(form.name for form in found))
            raise InputError(f"{self.where}: layer {layer}: {', '.join(modules)} are one product, but lie in {names}")
        return found.pop()

    def head(self, *modules: str) -> NumberFormat:
        """Of the output head: as stored, unless a rule names it (producers leave it alone by default)."""
        for patterns, form in self.rules:
            if any(patterns.match(module) for module in modules):
                return form
        return self.stored

    def _one(self, paths: list[str]) -> NumberFormat:
        for patterns, form in self.rules:
            if any(patterns.match(path) for path in paths):
                return form
        if any(self.kept.match(path) for path in paths):
            return self.stored
        return self.default if self.default is not BF16 else self.stored


# Keys that change no format: how scales were found and how they are stored, who made them.
_NO_FORMAT = """
activation_scheme fmt scale_fmt producer desc_act sym damp_percent version zero_point backend checkpoint_format
true_sequential static_groups quantization_status format quant_method meta provider autoround_version dtype
packing_format model_name_or_path model_file_base_name quant_type group_size moe_quant_algo kv_cache_scheme
activation_scale_ub kv_cache_quant_algo exllama_config cache_block_outputs use_exllama max_input_length data_type
iters nsamples seqlen low_gpu_mem_usage weight_scale_type has_zero_point
"""
NO_FORMAT = frozenset(_NO_FORMAT.split())

# Names of modelopt (hf_quant_config "quant_algo"), read as https://github.com/NVIDIA/TensorRT-LLM, QuantAlgo, has them.
ALGORITHMS = {
    "FP8": FP8, "FP8_PER_CHANNEL_PER_TOKEN": FP8, "FP8_BLOCK_SCALES": FP8_BLOCK, "FP8_PB_WO": FP8_BLOCK,
    "NVFP4": NVFP4, "NVFP4_AWQ": NVFP4, "W4A16_NVFP4": NVFP4_WEIGHTS, "MXFP8": MXFP8, "MXFP4": MXFP4,
    "W4A16_MXFP4": MXFP4, "W4A8_MXFP4_FP8": MXFP4_FP8, "W8A8_SQ_PER_CHANNEL": INT8,
}
KV_ALGORITHMS = {"FP8": "fp8", "NVFP4": "fp4", "INT8": "int8", "BF16": "bf16", "FP16": "fp16"}


def quantisation(config: Fields, text: Fields, sidecar: object = None) -> Quantisation:
    """What the config and its sidecar say, or none. Raises InputError for a method whose formats are not known."""
    stored = _stored(text if text.has("torch_dtype") or text.has("dtype") else config)
    plain = Quantisation(default=BF16, stored=stored, kv=stored.weights, where=config.where)
    holder = config if config.has("quantization_config") else text
    if holder.has("quantization_config"):
        said = holder.part("quantization_config")
        found = _from_config(said, plain)
        said.nothing_left(NO_FORMAT)
        return found if sidecar is None else _with_kv(found, sidecar)
    return plain if sidecar is None else _from_sidecar(sidecar, plain)


def _stored(fields: Fields) -> NumberFormat:
    name = fields.text("torch_dtype", "") or fields.text("dtype", "bfloat16")
    forms = {"bfloat16": BF16, "float16": NumberFormat("fp16", "fp16", "fp16"),
             "float32": NumberFormat("fp32", "fp32", "fp32")}
    if name.removeprefix("torch.") not in forms:
        raise InputError(f"{fields.where}: 'dtype' is '{name}'; known: {', '.join(forms)}")
    return forms[name.removeprefix("torch.")]


def _sidecar(sidecar: object) -> Fields:
    return Fields(sidecar, "hf_quant_config").part("quantization")


def _from_sidecar(sidecar: object, plain: Quantisation) -> Quantisation:
    return _modelopt(_sidecar(sidecar), replace(plain, where="hf_quant_config"))


def _with_kv(found: Quantisation, sidecar: object) -> Quantisation:
    fields = _sidecar(sidecar)
    return replace(found, kv=_kv(fields, found.kv)) if fields.has("kv_cache_quant_algo") else found


def _from_config(fields: Fields, plain: Quantisation) -> Quantisation:
    method = fields.text("quant_method", "modelopt").lower()
    plain = replace(plain, kv=_kv(fields, plain.kv))
    kept = _texts(fields, "modules_to_not_convert")
    if method in ("fp8", "fbgemm_fp8", "mxfp8", "mxfp4"):
        if fields.has("quantized_layers"):           # modelopt on top: what it left alone stays as it was
            fields.must("quant_algo", "MIXED_PRECISION")
            fields.raw("config_groups"), fields.raw("ignore")
        default = {"mxfp8": MXFP8, "mxfp4": MXFP4}.get(method) or _fp8(fields)
        return replace(plain, name=method, default=default, kept=Patterns.of(kept, fields.where),
                       rules=tuple(_named(fields)))
    if method in ("awq", "gptq", "auto-round"):
        return replace(plain, name=method, default=_integers(fields), kept=Patterns.of(kept, fields.where))
    if method == "compressed-tensors" or (method == "modelopt" and not fields.has("quant_algo")):
        return _groups(fields, plain, method)
    if method.startswith("modelopt"):
        return _modelopt(fields, plain)
    raise InputError(f"{fields.where}: 'quant_method' is '{method}'; known: fp8, fbgemm_fp8, mxfp8, mxfp4, awq, gptq, "
                     "compressed-tensors, modelopt")


def _fp8(fields: Fields) -> NumberFormat:
    block = fields.raw("weight_block_size")
    if block is None:
        return FP8
    sizes = block if isinstance(block, list) else []
    if len(sizes) != 2 or not all(isinstance(size, int) and 0 < size <= 1 << 20 for size in sizes):
        raise fields.wrong("weight_block_size", "two integers")
    return MXFP8 if block == [1, 32] else fp8_block(*block)


def _integers(fields: Fields) -> NumberFormat:
    bits, group = fields.integer("bits", "w_bit"), fields.optional("group_size", "q_group_size", least=-1) or 128
    if bits == 8:
        return NumberFormat("w8a16_int8", "int8", "bf16")
    if bits != 4:
        raise InputError(f"{fields.where}: weights of {bits} bits; known: 4, 8")
    return int4(group if group > 0 else 1 << 20)         # -1: one scale a column, too few to count


def _texts(fields: Fields, key: str) -> list[str]:
    value = fields.raw(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise fields.wrong(key, "a list of texts")
    return value


def _named(fields: Fields) -> Iterator[tuple[Patterns, NumberFormat]]:
    """Rules of quantized_layers: {"model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4", …}, …}."""
    if not fields.has("quantized_layers"):
        return
    by_form: dict[NumberFormat, list[str]] = {}
    for name, entry in fields.part("quantized_layers").values.items():
        one = Fields(entry, f"{fields.where}: '{name}'")
        by_form.setdefault(_algorithm(one.text("quant_algo", ""), one), []).append(name)
    for form, names in by_form.items():
        yield Patterns.of(names, fields.where), form


def _algorithm(name: str, fields: Fields) -> NumberFormat:
    if name in ("W4A16_AWQ", "W4A16", "W4A16_GPTQ"):
        return int4(fields.optional("group_size") or 128)
    if name in ("W4A8_AWQ",):
        return replace(int4(fields.optional("group_size") or 128), name="w4a8_int4", activations="fp8")
    if name not in ALGORITHMS:
        raise InputError(f"{fields.where}: 'quant_algo' is '{name}'; known: {', '.join(sorted(ALGORITHMS))}")
    return ALGORITHMS[name]


def _modelopt(fields: Fields, plain: Quantisation) -> Quantisation:
    """Of a sidecar or of a config that names its algorithm."""
    algorithm = fields.text("quant_algo", "")
    fields.raw("config_groups")          # the same, in the words of compressed-tensors
    kept = _texts(fields, "exclude_modules") + _texts(fields, "ignore") + _texts(fields, "modules_to_not_convert")
    plain = replace(plain, kv=_kv(fields, plain.kv), kept=Patterns.of(kept, fields.where),
                    name=algorithm.lower() or "none")
    if algorithm == "MIXED_PRECISION":
        if not fields.has("quantized_layers"):
            raise InputError(f"{fields.where}: 'MIXED_PRECISION' without 'quantized_layers': which module lies in "
                             "which format is missing")
        return replace(plain, rules=tuple(_named(fields)))
    return plain if not algorithm else replace(plain, default=_algorithm(algorithm, fields))


def _groups(fields: Fields, plain: Quantisation, method: str) -> Quantisation:
    """Of compressed-tensors: groups of modules, each with bits of weights and of activations."""
    kept = Patterns.of(_texts(fields, "ignore"), fields.where)
    groups = fields.part("config_groups").values if fields.has("config_groups") else {}
    if not groups:
        raise InputError(f"{fields.where}: 'config_groups' is missing: which format the weights have is not said")
    default, rules = plain.default, []
    for name, entry in groups.items():
        one = Fields(entry, f"{fields.where}: '{name}'")
        form, targets = _group(one), _texts(one, "targets") or ["Linear"]
        if "Linear" in targets:
            default = form
        else:
            rules.append((Patterns.of(targets, one.where), form))
    kv = _kv(fields, plain.kv)
    return replace(plain, name=method, default=default, rules=tuple(rules), kept=kept, kv=kv)


def _group(fields: Fields) -> NumberFormat:
    weights = fields.part("weights")
    bits, kind = weights.integer("num_bits"), weights.text("type", "int")
    group = weights.optional("group_size", least=-1) or 0
    inputs = fields.part("input_activations") if fields.has("input_activations") else None
    given = inputs.integer("num_bits") if inputs else 16
    form = {
        ("float", 4, 16): NVFP4 if given == 4 else NVFP4_WEIGHTS, ("float", 4, 32): MXFP4_FP8 if given == 8 else MXFP4,
        ("float", 8, 32): MXFP8,
    }.get((kind, bits, group))
    if form is None and (kind, bits) == ("float", 8):
        block = weights.raw("block_structure")
        form = _fp8(Fields({"weight_block_size": block}, weights.where)) if block else FP8
        form = form if given == 8 else replace(form, name=f"w8a16_{form.name}", activations="bf16")
    elif form is None and (kind, bits) == ("int", 4):
        form = int4(group if group and group > 0 else 1 << 20)
        form = form if given == 16 else replace(form, name=f"w4a8_{form.name}", activations="int8")
    elif form is None and (kind, bits) == ("int", 8):
        form = INT8 if given == 8 else NumberFormat("w8a16_int8", "int8", "bf16")
    if form is None:
        raise InputError(f"{weights.where}: {kind} weights of {bits} bits in groups of {group} are not known")
    return form


def _kv(fields: Fields, otherwise: str) -> str:
    """Number format of cached keys and values."""
    scheme: Any = fields.raw("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        one = Fields(scheme, f"{fields.where}: 'kv_cache_scheme'")
        bits, kind = one.integer("num_bits"), one.text("type", "float")
        found = {(8, "float"): "fp8", (4, "float"): "fp4", (8, "int"): "int8"}.get((bits, kind))
        if found is None:
            raise InputError(f"{one.where}: {kind} of {bits} bits is not known")
        return found
    name = scheme if isinstance(scheme, str) else fields.raw("kv_cache_quant_algo")
    if name is None:
        return otherwise
    if not isinstance(name, str) or name.upper() not in KV_ALGORITHMS:
        raise InputError(f"{fields.where}: format of cached keys and values is {name!r}; known: "
                         f"{', '.join(KV_ALGORITHMS)}")
    return KV_ALGORITHMS[name.upper()]
