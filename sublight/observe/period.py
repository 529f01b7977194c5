"""This file knows about the period of a run: steps that nobody marked, found in the sequence of its kernels.

    kernels   c d | a b c d | a b c d | a b c d | a b       period 4: three repetitions; cut ends of two each
              x y z | a b c d | a b c d | a b c d           a head that is no end of the period: a warm-up
              e | a b | a b | a b | f                       not a period: layers of one step. What begins and ends it
                                                            is in none of them, and no end of theirs either

A sequence is in the order of launches, which does not depend on how streams interleave. Kernels are compared by name
alone. Layers of a step of which both ends are cut off look like steps: nothing in the sequence tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sublight.trace import I32, I64, B

MATCH_AT_LEAST = 0.98                  # of the kernels of a repetition and those one period later
SEEMS_PERIODIC = 0.5                   # share of equal kernels from which a lag is looked at closely
CODES = 8                              # random codes; each estimates every lag's share of equal kernels at once
LOOKED_AT = 1 << 16                    # kernels from the start: their lags are tried before those of all
COUNTED_UP_TO = 2_000                  # kernels: shares are counted, not estimated
MOST_LAGS = 1_000                      # counted exactly, shortest first
LEAST_KERNELS = 4                      # in a period: less is a loop of one operator
WARM_UP_SHARE = 0.5                    # of a period's length, and of its names: a head that is smaller is no warm-up


@dataclass(frozen=True, slots=True)
class Repetitions:
    """Full repetitions of a period, by positions in the sequence. Counts are kernels."""

    period: int
    starts: tuple[int, ...]            # of each repetition
    warm_up: int                       # before the first, and unlike its end
    cut_start: int                     # before the first, and like its end
    cut_end: int                       # after the last, like its beginning
    match: float                       # share of kernels with the same name one period later
    period_ns: int | None              # median time from one start to the next; None where no times were given

    @property
    def stop(self) -> int:
        """The position after the last repetition."""
        return self.starts[-1] + self.period


@dataclass(frozen=True, slots=True)
class Inside:
    """Something that repeats, and is no step: layers, most likely."""

    period: int
    times: int
    unlike: int                        # kernels that repeat with no such period, at the ends or between


@dataclass(frozen=True, slots=True)
class Period:
    """What was found. `repetitions` is None where the sequence holds one step, or cannot be told from one."""

    repetitions: Repetitions | None
    inside: Inside | None


def period(names: I32, start_ns: I64 | None = None) -> Period:
    """The shortest period that the whole sequence has, but for its ends.

    `names` are numbers of kernels' names in launch order, `start_ns` the starts of the same kernels: of several ways
    to cut the sequence into as many repetitions, the one with the longest pauses before them is taken.
    """
    found = _first_of(names, start_ns, _lags(names[:LOOKED_AT]))
    if found.repetitions is None and len(names) > LOOKED_AT:       # a period that the beginning does not hold twice
        found = _first_of(names, start_ns, _lags(names))
    return found


def _first_of(names: I32, start_ns: I64 | None, lags: list[int]) -> Period:
    """The first of these lags that is a period of the whole."""
    inside: Inside | None = None
    refused = list(range(1, LEAST_KERNELS))
    for lag in lags:
        body = _body(names, lag)
        if body is None or _repeats(names[body[0] : body[0] + lag], refused):
            continue
        found, unlike = _fitted(names, lag, body, start_ns)
        if found is not None:
            return Period(found, inside)
        refused.append(lag)
        if inside is None:
            inside = Inside(lag, (body[1] - body[0]) // lag, unlike)
    return Period(None, inside)


def _lags(names: I32) -> list[int]:
    """Lags at which most kernels seem to have the same name as before, shortest first.

    Each name gets a random sign: the product of a kernel's and a later one's is 1 where the names are equal, and 0 on
    average where not. One autocorrelation, by Fourier transform, estimates all lags.
    """
    n = len(names)
    most = n // 2
    if most < LEAST_KERNELS:
        return []
    if n <= COUNTED_UP_TO:
        return [lag for lag in range(LEAST_KERNELS, most + 1) if (names[:-lag] == names[lag:]).mean() >= SEEMS_PERIODIC]
    rng = np.random.default_rng(0)
    size = 1 << (2 * n - 1).bit_length()
    sums = np.zeros(most + 1)
    for _ in range(CODES):
        signs = rng.choice([-1.0, 1.0], int(names.max()) + 1)
        spectrum = np.fft.rfft(signs[names], size)
        sums += np.fft.irfft(spectrum.real**2 + spectrum.imag**2, size)[: most + 1]
    shares = sums / CODES / (n - np.arange(most + 1))
    lags = np.flatnonzero(shares >= SEEMS_PERIODIC)
    out: list[int] = lags[lags >= LEAST_KERNELS][:MOST_LAGS].tolist()
    return out


def _body(names: I32, lag: int) -> tuple[int, int] | None:
    """Where the sequence has this period: the longest stretch of at least two periods whose ends match and that matches
    but for 2 %. Its end lies one period after the last kernel that has a successor."""
    same = names[:-lag] == names[lag:]
    if same.mean() < SEEMS_PERIODIC * 0.8:
        return None
    # The stretch with the largest sum of: matches, less what a mismatch costs at the tolerated share.
    gains = np.where(same, 1.0, -1.0 / (1 - MATCH_AT_LEAST) * 0.5)
    sums = np.concatenate([[0.0], np.cumsum(gains)])
    lowest = np.minimum.accumulate(sums)
    stop = int(np.argmax(sums - lowest))
    start = int(np.argmin(sums[: stop + 1]))
    if stop - start < lag or same[start:stop].mean() < MATCH_AT_LEAST:
        return None
    return start, stop + lag


def _repeats(one: I32, lags: list[int]) -> bool:
    """Does this period consist of shorter ones?"""
    return any(len(one) % lag == 0 and 2 * lag <= len(one) and (one[:-lag] == one[lag:]).mean() >= MATCH_AT_LEAST
               for lag in lags)


def _fitted(
    names: I32, lag: int, body: tuple[int, int], start_ns: I64 | None,
) -> tuple[Repetitions | None, int]:
    """The repetitions, or None where this lag is no period of the whole; and how many kernels do not have it."""
    first, stop = body
    head, tail = names[:first], names[stop:]
    same = names[first : stop - lag] == names[first + lag : stop]
    unlike = first + len(names) - stop + int((~same).sum())
    rhythm = _has_other_rhythm(names[first : stop - lag], same)
    if len(tail) or rhythm or not _is_warm_up(head, names[first:stop], lag):
        return None, unlike
    begin = _best_cut(first, stop, lag, start_ns)
    starts = tuple(range(begin, stop - lag + 1, lag))
    period_ns = None
    if start_ns is not None and len(starts) > 1:
        period_ns = int(np.median(np.diff(start_ns[list(starts)])))
    cut_end = stop - starts[-1] - lag
    return Repetitions(lag, starts, first, begin - first, cut_end, float(same.mean()), period_ns), unlike


def _has_other_rhythm(names: I32, same: B) -> bool:
    """Are there names of which most lack a successor one period later? They come once in several of these periods:
    what begins and ends a step of many layers."""
    size = int(names.max(initial=0)) + 1
    all_of = np.bincount(names, minlength=size)
    unlike = np.bincount(names[~same], minlength=size)
    return bool(((2 * unlike > all_of) & (all_of > 0)).any())


def _is_warm_up(head: I32, body: I32, lag: int) -> bool:
    """May this be a warm-up, or nothing at all? The first kernels of a single step are few, or others; a head that
    holds whole periods, too, is another step of such layers."""
    if not len(head):
        return True
    one = np.unique(body[:lag])
    shared = np.isin(one, head).mean()
    if len(head) < WARM_UP_SHARE * lag or shared < WARM_UP_SHARE:
        return False
    unlike = np.flatnonzero(np.concatenate([[True], head[:-lag] != head[lag:], [True]])) if len(head) > lag else [0, 1]
    return int(np.diff(unlike).max()) <= lag


def _best_cut(first: int, stop: int, lag: int, start_ns: I64 | None) -> int:
    """Where the first repetition begins: as many as fit, and of several ways the one with the longest pauses."""
    spare = (stop - first) % lag
    if start_ns is None or not spare:
        return first
    pauses = np.diff(start_ns, prepend=start_ns[0])
    cuts = range(first, first + spare + 1)
    return max(cuts, key=lambda at: (float(np.median(pauses[at : stop - lag + 1 : lag])), -at))
