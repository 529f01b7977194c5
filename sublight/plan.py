"""This file knows about what is asked of a model (a Workload: Traffic or Job) and what we may change (a Plan).

    >>> Traffic(isl=4096, osl=1024, concurrency=64)
    Traffic(isl=4096, osl=1024, concurrency=64, rate=None, requests=None, shortest=1.0, burst=True, prefix_hit=0.0)
    >>> Serving(tp=4, dp=2).gpus, Training(tp=8, pp=4, dp=16).gpus
    (8, 512)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from sublight.errors import InputError


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests to a serving engine: a closed loop of `concurrency` users, or Poisson arrivals at `rate` a second.

    isl, osl   nominal tokens of a prompt and of an answer
    requests   of the whole run; None: so many that neither start nor end shows
    shortest   lengths are drawn evenly from shortest to 1 times the nominal
    burst      all users start at once, and their first requests count
    prefix_hit share of prompt tokens that the prefix cache holds
    """

    isl: int
    osl: int
    concurrency: int | None = None
    rate: float | None = None
    requests: int | None = None
    shortest: float = 1.0
    burst: bool = True
    prefix_hit: float = 0.0

    def __post_init__(self) -> None:
        if self.isl < 1 or self.osl < 1:
            raise InputError(f"isl and osl expected 1 token or more, got {self.isl} and {self.osl}")
        if (self.concurrency is None) == (self.rate is None):
            raise InputError("traffic needs a concurrency (closed loop) or a rate (open loop), one of them")
        if self.concurrency is not None and self.concurrency < 1:
            raise InputError(f"concurrency expected 1 request or more, got {self.concurrency}")
        if self.rate is not None and not 0 < self.rate < inf:
            raise InputError(f"rate expected requests a second above 0, got {self.rate:g}")
        if self.requests is not None and self.requests < 1:
            raise InputError(f"requests expected 1 or more, got {self.requests}")
        if not 0 < self.shortest <= 1 or not 0 <= self.prefix_hit < 1:
            raise InputError(f"shortest expected in (0, 1] and prefix_hit in [0, 1), got {self.shortest}, "
                             f"{self.prefix_hit}")


@dataclass(frozen=True, slots=True)
class Job:
    """A training run: sequences of `seq` tokens, `gbs` of them a step."""

    seq: int
    gbs: int


@dataclass(frozen=True, slots=True)
class Serving:
    """One instance of a serving engine, and how many replicas of it. None: the engine's own default.

    tp, pp, dp (attention replicas that share experts), ep: as models.Split has them.
    """

    engine: str = "vllm"                 # "vllm", "sglang", "trtllm"
    version: str | None = None
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    replicas: int = 1                    # independent instances behind a router
    token_budget: int | None = None      # tokens of one step (max_num_batched_tokens, chunked_prefill_size …)
    max_sequences: int | None = None     # of one attention replica's step
    memory_fraction: float | None = None
    max_length: int | None = None        # longest context
    kv: str | None = None                # number format of the cache
    chunked_prefill: bool = True
    cuda_graphs: bool = True
    prefix_cache: bool = True
    drafts: int = 0                      # tokens that are guessed a step (speculative decoding)
    acceptance: float = 0.0              # mean accepted ones of them, of each: 0 … 1
    poll_steps: int = 1                  # decode steps between two looks at the queue
    wait_steps: int = 0                  # prompts wait so many steps at most until they fill wait_fill of the budget
    wait_fill: float = 0.0
    balance_steps: int = 0               # prompts wait up to so many steps until each attention replica has one
    two_batch_overlap: bool = False
    attention_kind: str | None = None
    moe_kind: str | None = None          # "deepep-ll", "deepep-normal", "tp" …
    all_reduce_kind: str | None = None
    imbalance: float = 1.0               # rows of the busiest group of experts over the mean
    extra: tuple[tuple[str, str], ...] = ()      # flags that we do not know, kept as they are

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp * self.replicas


@dataclass(frozen=True, slots=True)
class Disaggregated:
    """Prefill workers and decode workers, joined by a transfer of the cache."""

    prefill: Serving
    decode: Serving
    prefill_workers: int = 1
    decode_workers: int = 1

    @property
    def gpus(self) -> int:
        return self.prefill_workers * self.prefill.gpus + self.decode_workers * self.decode.gpus


@dataclass(frozen=True, slots=True)
class Training:
    """A training layout. dp: all replicas of the dense part (world / (tp · pp · cp)); ep divides dp · cp · tp.

    zero: 0 none, 1 optimizer states are split over dp, 2 gradients too, 3 parameters too (FSDP).
    """

    framework: str = "megatron"          # "megatron", "torchtitan", "llm-foundry" …
    version: str | None = None
    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1                         # ranks that share one expert by columns
    vpp: int = 1                         # chunks of layers a stage (interleaving)
    mbs: int = 1
    schedule: str = "1f1b"               # "1f1b", "interleaved", "zero-bubble", "dualpipe", "gpipe"
    sequence_parallel: bool = True
    recompute: str = "none"              # "none", "selective", "full"
    zero: int = 1
    precision: str = "bf16"              # "bf16", "fp8", "mxfp8", "nvfp4" …
    cuda_graphs: bool = False
    overlap_grad: bool = True            # gradient reduction beside the backward pass
    overlap_param: bool = True           # parameter gathering beside the forward pass
    overlap_tp: bool = False
    overlap_ep: bool = False
    optimizer: str = "adam"
    imbalance: float = 1.0
    extra: tuple[tuple[str, str], ...] = field(default=())

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.cp * self.dp


Workload = Traffic | Job
Plan = Serving | Disaggregated | Training
