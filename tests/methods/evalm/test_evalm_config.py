from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contextlab.errors import UserError
from contextlab.methods.evalm.config import EVALMConfig, Geometry


@st.composite
def geometries(draw: Any) -> Any:
    chunk = draw(st.integers(1, 5))
    window = chunk * draw(st.integers(1, 4))
    recent = draw(st.sampled_from([0, window]))
    sinks = draw(st.integers(0, min(3, window)))
    own = draw(st.booleans())
    first = 0 if own else draw(st.integers(0, sinks // chunk))
    return Geometry(window, chunk, sinks, recent, draw(st.integers(0, 12)), own, first)


@settings(max_examples=60, deadline=None)
@given(geometries(), st.integers(1, 80))
def test_what_is_gone_is_what_a_cache_that_is_cut_no_longer_holds(geometry: Any, length: Any) -> None:
    """Read token by token: which tokens are in view, by the cache's own rule, and by the geometry's."""
    view: list[int] = []
    for token in range(length):
        if token and token % geometry.window == 0:
            first, last = view[: geometry.sinks], view[geometry.sinks :]
            view = first + (last[-geometry.recent :] if geometry.recent else [])
            assert len(view) == geometry.kept(token)
        view.append(token)
    past = geometry.past(length, len(view))
    assert view == sorted({*range(min(geometry.sinks, length)), *range(past, length)})
    assert past % geometry.chunk == 0
    assert int(geometry.past(torch.tensor(length), torch.tensor(len(view)))) == past


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 9), st.booleans(), st.integers(0, 90), st.integers(0, 2))
def test_no_token_is_seen_twice_but_where_a_chunk_reaches_out_of_the_sinks(
    chunk: int, chunks: int, sinks: int, overlap: bool, before: int, first_window: int
) -> None:
    """A query's exact tokens and the tokens behind its summaries, by a cache that is cut as the method's is."""
    window = chunk * chunks
    sinks = min(sinks, window)
    config = EVALMConfig(W=window, c=chunk, sinks=sinks, overlap=overlap)
    geometry = config.geometry(128)
    view, end = [], max(chunk * first_window, 0) or window
    for token in range(before):
        if token == end:
            view, end = [*view[:sinks], *(view[sinks:][-window:] if overlap else [])], end + window
        view.append(token)
    past = torch.tensor([geometry.past(before, len(view))])
    seen = int(geometry.seen(torch.tensor([[before]]), past))
    summarised = [*range(geometry.first * chunk, (geometry.first + seen) * chunk)]
    assert {*view, *summarised} == {*range(before)}
    twice = [*range(sinks // chunk * chunk, sinks)] if seen else []
    assert sorted({*view} & {*summarised}) == twice

    trained = dataclasses.replace(config, sink_summaries=True).geometry(128)
    assert int(trained.seen(torch.tensor([[before]]), past)) == int(past) // chunk
    assert trained.first == 0


@settings(max_examples=60, deadline=None)
@given(geometries(), st.integers(0, 60))
def test_summaries_stand_in_front_of_the_cache_in_order(geometry: Any, windows: Any) -> None:
    begin = windows * geometry.window
    end = begin + geometry.window
    past = torch.tensor([geometry.past(begin, geometry.kept(begin))])
    counts = geometry.seen(torch.arange(begin, end)[None], past)[0]
    assert (counts.diff() >= 0).all()
    if geometry.own:
        assert counts.tolist() == [t // geometry.chunk for t in range(begin, end)]
    else:
        assert counts.tolist() == [max(int(past) // geometry.chunk - geometry.first, 0)] * geometry.window
    positions = geometry.positions(int(counts[-1]), past, torch.tensor([end]))[0]
    assert (positions.diff() >= 0).all()
    assert (positions >= -geometry.far).all()
    assert (positions <= 0).all()
    if len(positions) and geometry.far and not geometry.own:
        assert positions[-1] == -1


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("positions", [64, 128, 1000, 8192])
def test_no_distance_is_longer_than_the_model_knows(positions: int, overlap: bool) -> None:
    geometry = EVALMConfig(overlap=overlap).geometry(positions)
    last_query = geometry.sinks + geometry.recent + geometry.window - 1
    assert last_query + geometry.far == positions - 1
    assert geometry.far >= 0
    assert geometry.window % geometry.chunk == 0
    assert geometry.window == 1024 or geometry.far < 2 * geometry.chunk


def test_the_window_is_1024_where_there_is_room_and_what_fits_elsewhere() -> None:
    assert EVALMConfig().geometry(8192).window == 1024
    assert EVALMConfig(c=48).geometry(8192).window == 1008
    assert EVALMConfig(c=2048).geometry(8192).window == 2048
    assert EVALMConfig().geometry(128).window == 112
    assert EVALMConfig(overlap=True).geometry(128).window == 48


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"W": 32, "c": 5}, "W=32 must be a multiple of the chunk c=5"),
        ({"remote_visibility": "after"}, "remote_visibility"),
        ({"remote_bias": float("inf")}, "remote_bias"),
        ({"c": 0}, "c=0"),
        ({"chunk": 4}, "chunk"),
    ],
)
def test_wrong_settings_are_one_sentence(options: dict[str, float | str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        EVALMConfig.parse(options)
