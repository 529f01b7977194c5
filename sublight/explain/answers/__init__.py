"""Answers to pasted text: what is expected beside what is reported, and what follows from it.

    >>> from sublight.observe.pasted import recognise
    >>> found = answer(recognise("vllm serve meta-llama/Llama-3.1-8B -tp 8"), Given(gpus="8xH100"))
    >>> found.cases[0].case.plan.tp, [point.topic for point in found.points]
    (8, ['capacity', 'layout'])
"""

from __future__ import annotations

from dataclasses import replace

from sublight.errors import InputError
from sublight.explain.answers import capacity, compared, host, layout, peak, settings, speed
from sublight.explain.answers.answer import Case, Given, Judged, PastedAnswer, Point, Row, Term
from sublight.explain.answers.capture import capture, missing
from sublight.explain.answers.cases import cases
from sublight.explain.answers.figures import judged, reported_rows
from sublight.explain.answers.recognised import recognised, unread
from sublight.observe.pasted import Pasted
from sublight.plan import Serving, Traffic
from sublight.predict.validity import problems

__all__ = ["NOTHING", "Case", "Given", "Judged", "PastedAnswer", "Point", "Row", "Term", "answer"]

NOTHING = ("expected a PyTorch or Nsight trace, a launch command of vLLM, SGLang, TensorRT-LLM, Megatron or "
           "torchtitan, lines of their logs, or the summary or JSON of a serving benchmark; got something else: "
           "nothing in the text is recognised (nccl-tests, NCCL's logs and topologies: sublight comm doctor FILE)")


def answer(pasted: Pasted, given: Given | None = None) -> PastedAnswer:
    """What the text supports. Raises InputError where nothing in it is recognised, or an option cannot be."""
    if pasted.empty:
        raise InputError(NOTHING)
    found = tuple(_with_points(judged(case), pasted) for case in cases(pasted, given or Given()))
    points = [point for judgement in found for point in judgement.points]
    points += compared.points(found)
    points += peak.points(pasted, found)
    return PastedAnswer(recognised(pasted, [judgement.case for judgement in found]), found, tuple(points),
                        missing(found), capture(pasted, found), unread(pasted), pasted.notes)


def _with_points(found: Judged, pasted: Pasted) -> Judged:
    made: list[Point] = [*_impossible(found.case, pasted)]
    for source in (speed.points(found), capacity.points(found), host.points(found), layout.points(found),
                   settings.points(found, pasted)):
        try:
            made += source
        except InputError as error:      # a plan that cannot be: what is known of it is said above
            if not any(str(error) in note for note in found.notes):
                found = replace(found, notes=(*found.notes, str(error)))
    return replace(found, points=tuple(made))


def _impossible(case: Case, pasted: Pasted) -> list[Point]:
    """What an engine would refuse; where figures of a run are reported, it did not."""
    plan, model, where, load = case.plan, case.model, case.where, case.load
    if plan is None or model is None or where is None:
        return []
    asked = load if load is not None else Traffic(1, 1, concurrency=1) if isinstance(plan, Serving) else None
    wrong = problems(model, plan, where, asked) if asked is not None else ()
    borrowed = "has its shape" in case.sources.get("model", "")      # of a model with another context, then
    wrong = tuple(text for text in wrong if not (borrowed and "the model's context" in text))
    if wrong and (reported_rows(case) or any(figure.what == "tokens/s" for figure in pasted.figures)):
        return [Point("plan", f"computed, this plan does not run: {text}; yet the text reports that it did",
                      action="do not trust what is computed of memory here; print the engine's own figures (the start "
                      "of its log), and say the settings that the command leaves out") for text in wrong]
    return [Point("plan", f"this plan cannot run as it stands: {text}") for text in wrong]
