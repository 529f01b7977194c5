"""A transfer in chunks: ├ fixed ┤─ wire ─┤├ fixed ┤─ wire ─┤ …  and what chunk fills the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublight.comm.nccl import chunks
from sublight.errors import InputError


@given(st.integers(1, 1 << 30), st.floats(1e8, 1e12), st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_the_chunk_for_a_share_reaches_that_share(chunk: int, link: float, reached: float, share: float) -> None:
    fixed = chunks.fixed_seconds(chunk, reached * link, link=link)
    assert chunks.rate_at(chunk, fixed, link=link) == pytest.approx(reached * link, rel=1e-9)
    wanted = chunks.chunk_for(share, fixed, link=link)
    if wanted > 10_000:                              # of so many bytes rounding to one is nothing
        assert chunks.rate_at(wanted, fixed, link=link) == pytest.approx(share * link, rel=1e-4)


def test_overlapped_steps_need_a_smaller_chunk() -> None:
    fixed, step = chunks.fixed_seconds(128 << 10, 13.1e9, link=49e9), chunks.step_seconds(128 << 10, 13.1e9)
    assert chunks.chunk_for_overlapped(0.9, step, link=49e9) < chunks.chunk_for(0.9, fixed, link=49e9)


def test_a_rate_above_the_link_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"87\.6 GB/s in chunks of 1,048,576 B is more than the link's 49\.0 GB/s"):
        chunks.fixed_seconds(1 << 20, 87.6e9, link=49e9)


@pytest.mark.parametrize("share", [0.0, 1.0, 1.5])
def test_a_share_is_between_nothing_and_all(share: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        chunks.chunk_for(share, 1e-6, link=1e9)
