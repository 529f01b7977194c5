"""This file knows about the run behind a trace without shapes: which layers of which model, on how many tokens, on
which ranks; as given, as kernels and marks tell (inferred), and as assumed. Every such fact is said.

    backward kernels                     training; else prefill or decode, as marks of engine steps or tiles tell
    flash tiles, grid 32 x 128 x 1       tokens 4096 in one sequence; heads 128 of the model's 128, so tp 1
    internode::dispatch<false, 8, …>     ep 64
    4 forward attention kernels a step   4 layers
"""

from __future__ import annotations

from dataclasses import dataclass

from sublight.errors import InputError
from sublight.explain.exchanges import sizes
from sublight.explain.model_seen import Seen
from sublight.explain.view import View
from sublight.explain.words import number
from sublight.models import Batch, Model, Split, problems
from sublight.models.feedforward import Mixture
from sublight.ops.annotation import StepLoad

GIVEN, INFERRED, ASSUMED = "given", "inferred", "assumed"
PHASES = ("train", "prefill", "decode")


@dataclass(frozen=True)
class Asked:
    """What the user says of the run; None: the trace should tell. tokens: new ones of this rank in one pass (of a
    decode: sequences). layers: how many of the model's the window shows in one pass. context: cached tokens before
    them."""

    model: Model
    tokens: int | None = None
    layers: int | None = None
    phase: str | None = None
    sequences: int | None = None
    context: int | None = None
    ep: int | None = None
    tp: int | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "layers", "sequences", "ep", "tp"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= 1 << 31:
                raise InputError(f"--{name} expected 1 or more, got {value}")
        if self.phase is not None and self.phase not in PHASES:
            raise InputError(f"--phase expected one of {', '.join(PHASES)}, got '{self.phase}'")
        if self.layers is not None and self.layers > len(self.model.layers):
            raise InputError(f"--layers {self.layers}: {self.model.name} has {len(self.model.layers)}")


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that is known of the run. how: "given", "inferred" or "assumed"."""

    name: str
    value: str
    how: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} {self.value} ({self.how}{f': {self.why}' if self.why else ''})"


@dataclass(frozen=True)
class Setting:
    """The run: which layers of the model, on which ranks, and the sequences of each pass in the window."""

    model: Model
    phase: str
    layers: tuple[int, ...]              # of the model
    split: Split
    passes: tuple[tuple[Batch, ...], ...]
    optimizer: bool                      # the window has an optimizer's step
    facts: tuple[Fact, ...]

    @property
    def whole(self) -> bool:
        return len(self.layers) == len(self.model.layers)

    @property
    def mixtures(self) -> tuple[Mixture, ...]:
        blocks = (self.model.layers[i].mlp for i in self.layers)
        return tuple(block for block in blocks if isinstance(block, Mixture))


def setting(asked: Asked, view: View) -> Setting:
    """The run behind a window. Raises InputError, by name, for what neither the trace nor the user says, and where the
    two contradict each other."""
    if view.cpu_only:
        raise InputError("--model: a CPU-only trace has no device that a model's operators could be held against")
    if view.catalogued is None:
        raise InputError(f"--model: the device '{view.info.name}' is not in the catalog; say --device")
    seen, facts, model = Seen(view), list[Fact](), asked.model
    phase = _phase(asked, seen, facts)
    tp = _tp(asked, view, seen, facts)
    ep = _ep(asked, seen, tp, facts)
    split = Split(tp=tp, dp=max(1, ep // tp), ep=ep)
    if wrong := problems(model, split):
        raise InputError(f"--model {model.name} on tp {tp}, ep {ep}: {wrong[0]}")
    _same_model(asked, view, facts)
    count, passes = _layers(asked, seen, facts)
    batches = _batches(asked, view, seen, phase, passes, facts)
    chosen = _chosen(model, count, seen, facts)
    optimizer = phase == "train" and seen.optimizer > 0
    if phase == "train" and not optimizer:
        facts.append(Fact("optimizer", "none", INFERRED, "no optimizer's kernel in the window"))
    return Setting(model, phase, chosen, split, batches, optimizer, tuple(facts))


def _phase(asked: Asked, seen: Seen, facts: list[Fact]) -> str:
    if asked.phase:
        facts.append(Fact("phase", asked.phase, GIVEN, ""))
        return asked.phase
    if seen.backward:
        facts.append(Fact("phase", "train", INFERRED, f"{number(seen.backward, 'backward kernel')}"))
        return "train"
    if seen.loads:
        context = sum(load.context_tokens or 0 for load in seen.loads)
        generated = sum(load.generation_tokens or 0 for load in seen.loads)
        if not (context and generated) and context + generated:
            phase = "prefill" if context else "decode"
            facts.append(Fact("phase", phase, INFERRED, "marks of the engine's steps"))
            return phase
        raise InputError("--phase: the window mixes prefill and decode, or its marks do not say; choose a window of "
                         "one kind (--window A:B) and say --phase prefill|decode")
    if seen.tiles:
        facts.append(Fact("phase", "prefill", INFERRED, "attention in query tiles, no backward kernel"))
        return "prefill"
    raise InputError("--phase: nothing in the trace tells prefill from decode; say --phase train|prefill|decode")


def _heads(model: Model) -> int | None:
    return next((heads for layer in model.layers if (heads := getattr(layer.attention, "heads", None))), None)


def _tp(asked: Asked, view: View, seen: Seen, facts: list[Fact]) -> int:
    heads = _heads(asked.model)
    told = heads // seen.tiles[0] if heads and seen.tiles and heads % seen.tiles[0] == 0 else None
    if seen.tiles and heads and told is None:
        raise InputError(f"--model {asked.model.name}: attention runs on {seen.tiles[0]} heads, which do not divide "
                         f"the model's {heads}; another model?")
    if asked.tp is not None:
        if told is not None and told != asked.tp:
            raise InputError(f"--tp {asked.tp}: attention runs on {seen.tiles[0] if seen.tiles else 0} heads of the "
                             f"model's {heads}, so tp {told}")
        facts.append(Fact("tp", str(asked.tp), GIVEN, ""))
        return asked.tp
    if told is not None and seen.tiles:
        facts.append(Fact("tp", str(told), INFERRED, f"heads {seen.tiles[0]} in the attention kernels' grid, of the "
                                                     f"model's {heads}"))
        return told
    groups = {c.group_size for c in view.trace.collectives if c.name.startswith("allreduce") and c.group_size > 1}
    if len(groups) == 1 and not seen.backward:
        facts.append(Fact("tp", str(min(groups)), INFERRED, "ranks of its all-reduces"))
        return min(groups)
    world = view.trace.world_size or 1
    if world > 1 and seen.collectives and not seen.backward and not seen.ranks and heads and heads % world == 0:
        facts.append(Fact("tp", str(world), ASSUMED, f"all {world} ranks of the world, as collectives run: --tp"))
        return world
    facts.append(Fact("tp", "1", ASSUMED, "nothing in the trace tells it: --tp"))
    return 1


def _ep(asked: Asked, seen: Seen, tp: int, facts: list[Fact]) -> int:
    if asked.ep is not None:
        if seen.ranks and seen.ranks != asked.ep:
            raise InputError(f"--ep {asked.ep}: the exchange kernels' names tell {seen.ranks} ranks")
        facts.append(Fact("ep", str(asked.ep), GIVEN, ""))
        return asked.ep
    if seen.ranks:
        facts.append(Fact("ep", str(seen.ranks), INFERRED, "in the names of the exchange kernels"))
        return seen.ranks
    if any(isinstance(layer.mlp, Mixture) for layer in asked.model.layers):
        facts.append(Fact("ep", "1", ASSUMED, "no exchange kernel tells it: --ep"))
    return 1


def _same_model(asked: Asked, view: View, facts: list[Fact]) -> None:
    """Raises InputError where rows or experts of the trace are not the model's."""
    told = sizes(view.trace, None, {})
    mixture = next((layer.mlp for layer in asked.model.layers if isinstance(layer.mlp, Mixture)), None)
    if told.hidden is not None:
        if told.hidden != asked.model.width:
            raise InputError(f"--model {asked.model.name} is {asked.model.width} wide, but rows of the trace are "
                             f"{told.hidden} ({_why(told.told_by, 'hidden')}); another model?")
        facts.append(Fact("hidden", str(told.hidden), INFERRED, f"{_why(told.told_by, 'hidden')}; the model's too"))
    if told.experts is not None and mixture is not None and told.experts != mixture.experts:
        raise InputError(f"--model {asked.model.name} has {mixture.experts} experts, the trace {told.experts} "
                         f"({_why(told.told_by, 'experts')}); another model?")


def _why(told_by: tuple[str, ...], name: str) -> str:
    return next((text.split(": ", 1)[1] for text in told_by if text.startswith(f"{name} ")), "")


def _layers(asked: Asked, seen: Seen, facts: list[Fact]) -> tuple[int, int]:
    """(layers, passes through them in the window)."""
    depth, steps = len(asked.model.layers), max(1, len(seen.loads) or seen.steps)
    attended = sum(layer.attention is not None for layer in asked.model.layers)
    if asked.layers is not None:
        facts.append(Fact("layers", f"{asked.layers} of {depth}", GIVEN, ""))
        count = asked.layers
    elif attended == depth and seen.attention and seen.attention % steps == 0 and seen.attention // steps < depth:
        count = seen.attention // steps
        cut = "; the window may cut layers" if seen.cut else ""
        facts.append(Fact("layers", f"{count} of {depth}", INFERRED,
                          f"{number(seen.attention, 'forward attention kernel')} in {number(steps, 'step')}{cut}"))
    else:
        count = depth
        sure = seen.attention and seen.attention % depth == 0
        facts.append(Fact("layers", f"all {depth}", INFERRED if sure else ASSUMED,
                          f"{number(seen.attention, 'forward attention kernel')}"))
    passes = seen.attention // count if attended == depth and seen.attention and seen.attention % count == 0 else steps
    if passes > 1:
        facts.append(Fact("passes", str(passes), INFERRED, "attention kernels by layers"
                          if passes != steps else "steps in the window"))
    return count, passes


def _batches(
    asked: Asked, view: View, seen: Seen, phase: str, passes: int, facts: list[Fact],
) -> tuple[tuple[Batch, ...], ...]:
    """The sequences of each pass."""
    if asked.tokens is None and len(seen.loads) == passes and all(load.sum_q for load in seen.loads):
        return tuple((_of_load(load, phase, asked, facts),) for load in seen.loads)
    tokens = asked.tokens
    if tokens is not None:
        facts.append(Fact("tokens", f"{tokens:,}", GIVEN, "of this rank in one pass"))
    else:
        told = sizes(view.trace, None, {})
        if phase == "decode" or told.tokens is None:
            raise InputError("--tokens: nothing in the trace tells how many new tokens a pass has; say --tokens N"
                             + (" (of a decode: its sequences)" if phase == "decode" else ""))
        tokens = told.tokens
        facts.append(Fact("tokens", f"{tokens:,}", INFERRED, _why(told.told_by, "tokens")))
    if phase == "decode":
        if asked.context is None:
            raise InputError("--context: nothing in the trace tells how many tokens are cached; say --context N")
        facts.append(Fact("context", f"{asked.context:,}", GIVEN, "cached tokens of each sequence"))
        return ((Batch(tokens, 1, asked.context, decode=True),),) * passes
    sequences = _sequences(asked, seen, tokens, facts)
    if asked.context:
        facts.append(Fact("context", f"{asked.context:,}", GIVEN, "cached tokens of each sequence"))
    return ((Batch(sequences, tokens // sequences, asked.context or 0),),) * passes


def _sequences(asked: Asked, seen: Seen, tokens: int, facts: list[Fact]) -> int:
    if asked.sequences is not None:
        if tokens % asked.sequences:
            raise InputError(f"--sequences {asked.sequences} does not divide {tokens} tokens")
        facts.append(Fact("sequences", str(asked.sequences), GIVEN, ""))
        return asked.sequences
    if seen.tiles and tokens % seen.tiles[1] == 0:
        facts.append(Fact("sequences", str(seen.tiles[1]), INFERRED, "in the attention kernels' grid; causal"))
        return seen.tiles[1]
    facts.append(Fact("sequences", "1", ASSUMED, "nothing in the trace tells it: --sequences; causal"))
    return 1


def _of_load(load: StepLoad, phase: str, asked: Asked, facts: list[Fact]) -> Batch:
    """Requests of a step are taken to be equally long."""
    decode = phase == "decode"
    requests = (load.generation_requests if decode else load.context_requests) or load.sum_q or 1
    q = load.sum_q or requests
    each = max(1, q // requests)
    if decode and load.sum_k is None and asked.context is None:
        raise InputError("--context: the marks of the engine's steps do not say how much is cached; say --context N")
    context = asked.context if load.sum_k is None else max(0, load.sum_k // requests - each)
    said = f"{q:,} in {number(requests, 'request')}" + (f" after {context:,}" if context else "")
    fact = Fact("tokens", said, INFERRED, "marks of the engine's steps; requests are taken to be equally long")
    if fact not in facts:
        facts.append(fact)
    return Batch(requests, each, context or 0, decode=decode)


def _chosen(model: Model, count: int, seen: Seen, facts: list[Fact]) -> tuple[int, ...]:
    depth = len(model.layers)
    if count == depth:
        return tuple(range(depth))
    mixed = [i for i, layer in enumerate(model.layers) if isinstance(layer.mlp, Mixture)]
    if seen.experts and len(mixed) >= count:
        facts.append(Fact("which layers", "mixtures of experts", INFERRED,
                          f"expert kernels; taken: {mixed[-count]} to {mixed[-1]}, without embedding and head"))
        return tuple(mixed[-count:])
    facts.append(Fact("which layers", f"0 to {count - 1}", ASSUMED, "the first; without embedding and head"))
    return tuple(range(count))


def exchange_of(asked: Asked) -> dict[str, int | str]:
    """Sizes of expert exchanges that the model tells (explain.exchanges), and tokens where the user does."""
    mixture = next((layer.mlp for layer in asked.model.layers if isinstance(layer.mlp, Mixture)), None)
    if mixture is None:
        return {}
    out: dict[str, int | str] = {"top_k": mixture.top_k, "hidden": mixture.latent or mixture.width,
                                 "experts": mixture.experts}
    return out if asked.tokens is None else {**out, "tokens": asked.tokens}
