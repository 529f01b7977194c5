"""This file knows about expert exchanges in a trace: which sizes DeepEP's dispatches and combines have, as far as
kernels and arguments tell. What they do not tell is assumed, and every assumption is said.

    deep_ep::internode::dispatch<false, 8, true, 8>          8 nodes of 8 (csrc/kernels/internode.cu: kNumRDMARanks)
    deep_ep::internode_ll::dispatch<true, false, 7168>       hidden 7168  (internode_ll.cu: kHidden)
    deep_ep::intranode::dispatch<8, 768, 8192>               8 ranks      (intranode.cu: kNumRanks)
    get_dispatch_layout<256, 32, 8>, 16 blocks               32 experts or 8 ranks a block: 16 - 64/8 blocks of experts
    Flash_fwd_kernel_traits<192, 128, …>, grid 32 x 128 x 1  32 tiles of 128 tokens (one tile a block)
    layer_norm::Kernel_traits<…, 7168u, …>                   the widest row that is normalised is the hidden width
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sublight.errors import InputError
from sublight.explain.columns import present
from sublight.observe.kernel_name import classify, demangled
from sublight.ops.arguments import arguments
from sublight.trace import KERNEL, Trace

NVLINK_PEERS = 8                         # DeepEP, csrc/kernels/configs.cuh: NUM_MAX_NVL_PEERS
USUAL_TOP_K = 8                          # DeepSeek-V3 (arXiv 2412.19437, section 4.2) and most models since
USUAL_NODES_A_TOKEN = 4                  # same: each token goes to at most 4 nodes
SCALE_BLOCK = 128                        # elements that share a 4-byte scale in an fp8 dispatch (DeepEP, README)

EXCHANGE = re.compile(r"\b(?:deep_ep|dpsk::ep)::(?:\w+::)*?(?P<where>internode_ll|internode|intranode)::"
                      r"(?P<what>dispatch|combine)<(?P<arguments>[^()]*)>\(")
LAYOUT = re.compile(r"\bget_dispatch_layout<\d+, (?P<experts>\d+), (?P<ranks>\d+)>")
ROW = re.compile(r"\b(?:layer_norm|rms_norm|ln)\w*::.*?\b(\d{3,5})u\b")
TILE = re.compile(r"Flash_fwd_kernel_traits<\d+, (?P<rows>\d+),.*SingleTileScheduler")
GROUP_LIMITED = re.compile(r"topk_sum_and_topk_idx|grouped_topk|moe_fused_gate|noAuxTc|noaux_tc", re.IGNORECASE)
NAMES = ("tokens", "top_k", "hidden", "experts", "group_limit", "form")


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the exchanges of a rank have in common. None: neither the trace nor the user says it."""

    tokens: int | None = None            # of this rank, in one exchange
    top_k: int | None = None
    hidden: int | None = None
    experts: int | None = None
    group_limit: int | None = None       # nodes that a token may go to; None: any
    form: str | None = None              # of a dispatch: "fp8" (with scales) or "bf16"
    told_by: tuple[str, ...] = ()        # "hidden 7168: the widest normalised row"; assumptions begin with "assumed"

    @property
    def counts(self) -> tuple[int, int, int, int] | None:
        """(tokens, top-k, hidden, experts); None if one is missing."""
        told = (self.tokens, self.top_k, self.hidden, self.experts)
        found = tuple(count for count in told if count is not None)
        return found if len(found) == 4 else None

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name in ("tokens", "top_k", "hidden", "experts", "form") if getattr(self, name) is None)


@dataclass(frozen=True, slots=True)
class Kernel:
    """What the name of a dispatch or combine tells."""

    what: str                            # "dispatch" or "combine"
    mode: str                            # "normal" or "low-latency"
    ranks: int | None                    # None: low-latency kernels do not say
    nodes: int | None
    hidden: int | None
    cached: bool = False                 # a dispatch along a layout that is known: the backward of a combine


def kernel(name: str) -> Kernel | None:
    """The exchange that a kernel carries out; None for others.

        >>> kernel("void deep_ep::internode::dispatch<false, 8, true, 8>(int4*)")
        Kernel(what='dispatch', mode='normal', ranks=64, nodes=8, hidden=None, cached=True)
        >>> kernel("void deep_ep::internode_ll::combine<false, 7168, 9>(void*)").hidden
        7168
    """
    if "dispatch" not in name and "combine" not in name:
        return None
    found = EXCHANGE.search(demangled(name))
    if found is None:
        return None
    told, what = [part.strip() for part in found["arguments"].split(",")], found["what"]
    numbers = [int(part) for part in told if part.isdigit()]
    if found["where"] == "internode_ll":
        return Kernel(what, "low-latency", None, None, max((n for n in numbers if n >= 512), default=None))
    if not numbers:
        return None
    if found["where"] == "intranode":
        return Kernel(what, "normal", numbers[0], 1, None)
    return Kernel(what, "normal", numbers[0] * NVLINK_PEERS, numbers[0], None,
                  cached=what == "dispatch" and told[2:3] == ["true"])


def parse_sizes(text: str) -> dict[str, int | str]:
    """What --exchange means: "tokens=4096,top_k=8,form=fp8", any of NAMES. Raises InputError."""
    out: dict[str, int | str] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        name = name.strip()
        if name == "form" and value in ("fp8", "bf16"):
            out[name] = value
        elif name in NAMES and name != "form" and value.strip().isdigit() and 0 < int(value) < 1 << 31:
            out[name] = int(value)
        else:
            raise InputError(f"--exchange: '{part}' is not understood; expected tokens=4096,top_k=8,hidden=7168,"
                             "experts=256,group_limit=4,form=fp8|bf16, any of them")
    return out


def sizes(trace: Trace, ranks: int | None, given: Mapping[str, int | str]) -> Sizes:
    """The sizes of a trace's exchanges: as given, as arguments tell, as kernels tell, as usual; in this order."""
    out = Sizes()
    for found in (_given(given), _router(trace), _kernels(trace, ranks), _usual(trace)):
        new = {name: value for name, (value, _) in found.items() if getattr(out, name) is None}
        out = replace(out, told_by=(*out.told_by, *(found[name][1] for name in new)), **new)  # type: ignore[arg-type]
    return out


_Found = dict[str, tuple[int | str, str]]


def _given(given: Mapping[str, int | str]) -> _Found:
    return {name: (value, f"{name} {value}: as given") for name, value in given.items()}


def _router(trace: Trace) -> _Found:
    """The router's choice, aten::topk of (tokens, experts), where its arguments were recorded."""
    o = trace.ops
    for i in present(o.name):
        if trace.names[i] != "aten::topk":
            continue
        for index in np.unique(o.args[(o.name == i) & (o.args >= 0)]).tolist():
            call = arguments(trace.op_args[index])
            scores, k = (call.tensor(0), call.integer(1)) if call is not None else (None, None)
            if scores is None or k is None or len(scores.dims) != 2:
                continue
            tokens, experts = scores.dims
            if tokens and 1 < k <= 64 and k < experts <= 1024:
                told = f"aten::topk of ({tokens}, {experts}), k = {k}"
                return {"tokens": (tokens, f"tokens {tokens}: {told}"), "top_k": (k, f"top-k {k}: {told}"),
                        "experts": (experts, f"experts {experts}: {told}")}
    return {}


def _kernels(trace: Trace, ranks: int | None) -> _Found:
    """What the names and grids of the kernels around imply."""
    a = trace.activities
    kernels = np.flatnonzero(a.kind == KERNEL)
    names, first = np.unique(a.name[kernels], return_index=True)
    out: _Found = {}
    width, tokens = 0, 0
    for name, grid in zip(names.tolist(), a.grid[kernels[first]].tolist(), strict=True):
        text = trace.names[name]
        if (exchange := kernel(text)) is not None and exchange.hidden:
            out["hidden"] = exchange.hidden, f"hidden {exchange.hidden}: in the names of the low-latency kernels"
        if (layout := LAYOUT.search(text)) is not None and ranks and grid[0] > -(-ranks // int(layout["ranks"])):
            most = (grid[0] - -(-ranks // int(layout["ranks"]))) * int(layout["experts"])
            out["experts"] = most, f"experts {most}: blocks of get_dispatch_layout"
        width = max([width, *(int(row) for row in ROW.findall(text))])
        if (tile := TILE.search(text)) is not None:
            tokens = max(tokens, grid[0] * int(tile["rows"]) * grid[2])
        if GROUP_LIMITED.search(text):
            out["group_limit"] = (USUAL_NODES_A_TOKEN, f"assumed: at most {USUAL_NODES_A_TOKEN} nodes a token (routing "
                                  "limited to groups, as in DeepSeek-V3; its kernel is in the trace)")
    if width:
        out.setdefault("hidden", (width, f"hidden {width}: the widest normalised row"))
    if tokens:
        out["tokens"] = tokens, f"tokens {tokens}: query tiles of the attention kernels, all full"
    return out


def _usual(trace: Trace) -> _Found:
    products = [known for i in present(trace.activities.name)
                if (known := classify(trace.names[i])).category in ("gemm", "grouped gemm")]
    form = ("bf16", "assumed: dispatch in bf16, as no product is in fp8")
    if any((known.number_format or "").startswith("fp8") for known in products):
        form = "fp8", f"assumed: dispatch in fp8, a scale for {SCALE_BLOCK} elements, as products are in fp8"
    return {"top_k": (USUAL_TOP_K, f"assumed: top-k {USUAL_TOP_K}, as in DeepSeek-V3"), "form": form}
