"""Streams with registers in both directions."""

from __future__ import annotations

from amaranth.hdl import unsigned
from hypothesis import given
from hypothesis import strategies as st

from sterna.hw.parts.skid import SkidBuffer
from sterna.hw.testbench.amaranth import run_bench


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60))
def test_words_pass_in_order_and_nothing_passes_through_in_a_cycle(cycles) -> None:
    skid = SkidBuffer(unsigned(8))
    given_words, taken_words = [], []

    async def bench(ctx):
        offered = False
        for valid, ready in cycles:
            valid |= offered        # an offer stays
            seen = []
            for other in (not ready, ready):
                ctx.set(skid.going.ready, other)
                seen.append(ctx.get(skid.coming.ready))
            assert seen[0] == seen[1]
            held = ctx.get(skid.going.valid), ctx.get(skid.going.payload)
            ctx.set(skid.coming.payload, len(given_words) % 256)
            ctx.set(skid.coming.valid, valid)
            assert (ctx.get(skid.going.valid), ctx.get(skid.going.payload)) == held
            offered = valid and not seen[0]
            if valid and seen[0]:
                given_words.append(len(given_words) % 256)
            if held[0] and ready:
                taken_words.append(held[1])
            await ctx.tick()
            if held[0] and not ready:
                assert (ctx.get(skid.going.valid), ctx.get(skid.going.payload)) == held
        # Two words have room; the rest has come out.
        assert taken_words == given_words[:len(taken_words)]
        assert len(given_words) - len(taken_words) <= 2

    run_bench(skid, bench)


def test_a_word_passes_in_every_cycle() -> None:
    skid = SkidBuffer(unsigned(8))

    async def bench(ctx):
        ctx.set(skid.coming.valid, 1)
        ctx.set(skid.going.ready, 1)
        for word in range(20):
            ctx.set(skid.coming.payload, word)
            assert ctx.get(skid.coming.ready)
            await ctx.tick()
            assert ctx.get(skid.going.valid)
            assert ctx.get(skid.going.payload) == word

    run_bench(skid, bench)
