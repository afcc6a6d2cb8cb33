"""What must be true afterwards, whatever happened: asked of the witness, of the rows, and of the conversation."""

import json
from collections import Counter
from typing import Any
from uuid import UUID

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from placet.record.checkpointer import FencedSaver
from placet.record.database import Database
from tests.crash.case import Played, patiently
from tests.crash.slots import Slot

ALWAYS = {
    "an effect without an earlier verdict or approval of these very bytes": """
        select e.operation_id from placet.effects e join placet.plan_items i using (item_id)
         where e.thread_id = %(thread)s and e.undoes is null
           and not (e.approval_id is null and i.verdict ->> 'kind' = 'auto' and i.arguments = e.arguments
                    and i.gated_at <= e.first_dispatched_at)
           and not exists (
               select 1 from placet.approvals a
                 join placet.approval_revisions r using (approval_id, revision, payload_hash)
                 join placet.decisions d using (approval_id, revision, payload_hash)
                where a.approval_id = e.approval_id and a.item_id = e.item_id
                  and (a.status = 'approved' or e.status = 'absent')
                  and d.kind <> 'reject' and d.user_id <> a.requester and payload_hash = e.payload_hash
                  and convert_from(r.payload, 'UTF8')::jsonb -> 'arguments' = convert_from(e.arguments, 'UTF8')::jsonb
                  and d.decided_at <= e.dispatched_at)
        """,
    "two effects of one call that may have happened": """
        select item_id from placet.effects
         where thread_id = %(thread)s and status not in ('absent', 'refused') and undoes is null
         group by item_id having count(*) > 1
        """,
    "a gap in the events": """
        select thread_id from placet.events join placet.threads t using (thread_id)
         where thread_id = %(thread)s
         group by thread_id, t.seq having count(*) <> max(events.seq) or min(events.seq) <> 1 or t.seq <> max(events.seq)
        """,
    "something due or owned": """
        select 'a run' from placet.runs where thread_id = %(thread)s and status <> 'ended'
         union all
        select owner from placet.threads where thread_id = %(thread)s and owner is not null
        """,
    "an ended turn with an open call": """
        select item_id from placet.plan_items join placet.turns using (turn_id)
         where turns.thread_id = %(thread)s and ended_at is not null and result is null
        """,
    "an ended turn with an open question": """
        select approval_id from placet.approvals join placet.turns using (turn_id)
         where turns.thread_id = %(thread)s and ended_at is not null and approvals.status = 'pending'
        """,
    "an event that happens once and was told twice": """
        select type from placet.events
         where thread_id = %(thread)s
           and type in ('turn_started', 'turn_completed', 'turn_failed', 'turn_exhausted', 'turn_cancelled')
         group by type having count(*) > 1
         union all
        select type from placet.events
         where thread_id = %(thread)s and type in ('approval_requested', 'approval_decided', 'approval_closed')
         group by type, payload ->> 'approval_id' having count(*) > 1
         union all
        select type from placet.events
         where thread_id = %(thread)s and type = 'plan_updated'
         group by type, payload ->> 'step' having count(*) > 1
         union all
        select type from placet.events
         where thread_id = %(thread)s and type in ('tool_completed', 'tool_started') and payload ? 'operation_id'
         group by type, item_id, payload ->> 'operation_id', payload ->> 'attempt' having count(*) > 1
        """,
    "a plan that is not the recorded answer": """
        select i.item_id from placet.plan_items i
          left join placet.model_answers m on m.turn_id = i.turn_id and m.step = i.step
         where i.thread_id = %(thread)s
           and m.answer #> array['calls', i.ordinal::text, 'arguments'] is distinct from i.proposed
        """,
}


async def judge(slot: Slot, played: Played) -> None:
    """Append to `played.problems` what is not as it must be; count what happened."""
    story = played.case.story

    async def rows(query: Any) -> list[dict[str, Any]]:
        async def read() -> list[dict[str, Any]]:
            async with slot.owner.read() as tx:
                return await tx.fetch_dicts(query, {"thread": played.thread_id})

        return await patiently(read)

    for problem, query in ALWAYS.items():
        if found := await rows(query):
            played.problems.append(f"{problem}: {found}")

    happened = await played.world.happened(slot.owner)
    effects = await rows(
        """
        select tool, status, convert_from(arguments, 'UTF8')::jsonb as arguments, operation_id::text
          from placet.effects where thread_id = %(thread)s and undoes is null
        """
    )
    played.happened = sum(map(len, happened.values()))
    played.unknown = sum(effect["status"] == "unknown" for effect in effects)
    done = Counter(_key(tool, args) for tool, all_of_it in happened.items() for args in all_of_it)
    sent = Counter(_key(e["tool"], e["arguments"]) for e in effects if e["status"] not in ("absent", "refused"))
    if twice := [what for what, count in done.items() if count > sent[what] > 0 or count > 1 >= sent[what]]:
        played.problems.append(f"DUPLICATE: {twice}")
    if unheard_of := [what for what in done if what not in sent]:
        played.problems.append(f"happened without an effect row: {unheard_of}")
    if played.happened + played.unknown not in story.effects and played.happened not in story.effects:
        kind = "DUPLICATE" if played.happened > max(story.effects) else "LOST"
        played.problems.append(
            f"{kind}: {played.happened} happened, {played.unknown} unknown, {set(story.effects)} wanted"
        )

    failed = await rows(
        "select payload -> 'error' as error from placet.events where thread_id = %(thread)s and type = 'turn_failed'"
    )
    if failed and "model_breaks" not in story.facts:
        played.problems.append(f"the turn failed: {failed}")
    [turn] = await rows("select status, error from placet.turns where thread_id = %(thread)s")
    if turn["status"] not in story.ends:
        played.problems.append(f"the turn is {turn['status']}: {turn['error']}")
    played.problems += _conversation(
        await _messages(slot.owner, played.thread_id),
        await rows("select call_id, result from placet.plan_items where thread_id = %(thread)s order by step, ordinal"),
    )


def _key(tool: str, arguments: dict[str, Any]) -> str:
    kept = {name: value for name, value in arguments.items() if value is not None}
    return f"{tool} {json.dumps(kept, sort_keys=True)}"


async def _messages(database: Database, thread_id: UUID) -> list[AnyMessage]:
    """The conversation of the latest checkpoint."""

    async def read() -> list[AnyMessage]:
        found = await FencedSaver(database, None).aget_tuple({"configurable": {"thread_id": str(thread_id)}})
        return found.checkpoint["channel_values"].get("messages", []) if found else []

    return await patiently(read)


def _conversation(messages: list[AnyMessage], calls: list[dict[str, Any]]) -> list[str]:
    """Every call has one result, in the model's order, and it is the one in the rows (G5)."""
    asked = [str(call["id"]) for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    answered = [message.tool_call_id for message in messages if isinstance(message, ToolMessage)]
    results = [json.loads(message.text) for message in messages if isinstance(message, ToolMessage)]
    problems = []
    if asked != [call["call_id"] for call in calls]:
        problems.append(f"the conversation has the calls {asked}, the rows {[call['call_id'] for call in calls]}")
    if answered != asked:
        problems.append(f"asked {asked}, answered {answered}")
    if results != [call["result"] for call in calls]:
        problems.append("the model was told something else than what stands in the rows")
    return problems
