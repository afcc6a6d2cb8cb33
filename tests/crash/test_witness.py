"""The witness must be able to fail: without what keeps a call from leaving twice, it counts two.

Three things keep a second dispatcher away, each by itself: the epoch (O2), the unique keys of the effect row (E2), and the
last door, which looks at assent, call and turn once more (E1).
"""

from collections.abc import Awaitable, Callable

import pytest

from placet.record.embedded import Server
from tests.crash import matrix
from tests.crash.case import Case
from tests.crash.slots import Nursery, Slot
from tests.crash.stories import main_story

OVERTAKEN = [
    Case(main_story(tool, assent, differs=False), "dispatch:begin", "overtaken")
    for tool in ("mail", "pay")
    for assent in ("automatic", "approved")
]


async def without_keys(slot: Slot) -> None:
    """As if nobody had thought of a second dispatcher."""
    async with slot.owner.transaction() as tx:
        await tx.execute("drop index placet.e2_one_effect_per_item")
        await tx.execute("drop index placet.e2_one_effect_per_approval")
        await tx.execute("alter table placet.effects drop constraint effects_pkey cascade")


async def without_the_last_door(slot: Slot) -> None:
    """As if the code's own checks were enough."""
    async with slot.owner.transaction() as tx:
        await tx.execute("alter table placet.effects disable trigger e1_no_effect_without_assent")


async def without_epoch(slot: Slot) -> None:
    """As if whoever has been overtaken were still to be believed (with `unfenced` workers)."""
    async with slot.owner.transaction() as tx:
        await tx.execute(
            """
            create or replace function placet.fence(the_thread uuid, the_epoch bigint) returns void
                language sql as $$ select $$
            """
        )
        await tx.execute(
            """
            do $do$ begin
                execute replace(pg_get_functiondef('placet.append_event'::regproc), 'epoch = the_epoch', 'true');
            end $do$
            """
        )


Sabotage = Callable[[Slot], Awaitable[None]]
ALL: dict[str, Sabotage] = {"keys": without_keys, "the last door": without_the_last_door, "epoch": without_epoch}


def without(*names: str) -> Sabotage:
    async def prepare(slot: Slot) -> None:
        for name in names:
            await ALL[name](slot)

    return prepare


@pytest.mark.timeout(300)
async def test_e2_without_any_of_them_the_witness_counts_two(server: Server, template: str, nursery: Nursery) -> None:
    """A worker is stopped as it is about to dispatch, another finishes the turn, the first goes on: two letters arrive.

    The bank still pays once, since the operation id is its key.
    """
    report = await matrix.play_all(server, template, nursery, OVERTAKEN, slots=2, unfenced=True, prepare=without(*ALL))

    assert report.duplicates == 2
    twice = {played.case.story.name for played in report.failed if played.happened > 1}
    assert twice == {"mail automatic", "mail approved"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("left", ALL)
async def test_e2_any_one_of_them_is_enough(server: Server, template: str, nursery: Nursery, left: str) -> None:
    """With only the keys, only the last door, or only the epoch: one letter arrives."""
    report = await matrix.play_all(
        server,
        template,
        nursery,
        OVERTAKEN[:2],
        slots=2,
        unfenced=left != "epoch",
        prepare=without(*(name for name in ALL if name != left)),
    )

    assert report.duplicates == 0
    assert report.effects == report.played
