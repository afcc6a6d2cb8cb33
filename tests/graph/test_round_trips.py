"""What a pause and a resume cost in round trips to the database, so that a regression shows."""

from placet.record.database import Database
from tests.outside import World
from tests.roundtrips import counted
from tests.scripted import calls
from tests.steps import outside_house

PAUSE = 92  # 86 now, 26 of them the pool looking whether a connection is alive
RESUME = 90  # 84 now, 23 of them such looks


async def test_one_pause_and_one_resume_stay_within_their_round_trips(database_url: str, world: World) -> None:
    """One gated call: from claim to pause, and from claim to the end, with the model's second answer in between."""
    async with counted(database_url) as count, Database(count.url) as database:
        house = await outside_house(database, world, calls(("pay", {"to": "bo", "minor": 700})), "Paid.")
        turn = await house.ask()
        before = count.trips
        await house.worker.run_until_idle()
        pause = count.trips - before
        [asked] = await house.pending(turn)
        await house.approve(asked)
        before = count.trips
        await house.worker.run_until_idle()
        resume = count.trips - before
    assert (await _status(database_url)) == ["completed"]
    print(f"pause {pause}, resume {resume} round trips")
    assert 20 < pause <= PAUSE
    assert 20 < resume <= RESUME


async def _status(url: str) -> list[str]:
    async with Database(url) as database, database.read() as tx:
        return [row["status"] for row in await tx.fetch_dicts("select status from turns")]
