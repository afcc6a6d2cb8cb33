-- Effects: one intended change of the outside world, with its receipt.
--
--   dispatched ──▶ committed | refused | absent | unknown
--   unknown    ──▶ committed | absent | abandoned
--   absent     ──▶ dispatched          (confirmed not to have happened: the same operation goes again)
--
-- The row is inserted in a transaction of its own before the call leaves (E1); its key makes every second dispatcher
-- lose (E2). `operation_id` is uuid5(item, hash of the arguments) and goes to the tool as idempotency key.
-- An undo is an effect too, on its own key, that names the one it takes back (E9): a person's command, outside any run.

set search_path = placet, public;

create table effects (
    operation_id         uuid        primary key,
    tenant_id            text        not null,
    thread_id            uuid        not null,
    turn_id              uuid        not null,
    item_id              uuid        not null,
    tool                 text        not null,
    effect_class         text        not null,
    arguments            bytea       not null,          -- RFC 8785 bytes: exactly what is sent
    arguments_hash       bytea       not null,
    approval_id          uuid,                          -- none: the verdict was automatic
    revision             int,
    payload_hash         bytea,
    undoes               uuid        references effects,    -- the committed effect that this one takes back
    epoch                bigint      not null,          -- of the run that dispatched last
    attempts             int         not null default 1,
    status               text        not null default 'dispatched'
                         check (status in ('dispatched', 'committed', 'refused', 'absent', 'unknown', 'abandoned')),
    receipt              jsonb,
    error                jsonb,                         -- {code, message} when refused, or why it is unknown
    evidence             jsonb       not null default '[]',   -- what observing said, and when (E6)
    first_dispatched_at  timestamptz not null default clock(),   -- the idempotency window begins here (E5)
    dispatched_at        timestamptz not null default clock(),
    settled_at           timestamptz,
    key_id               text        not null,
    digest               bytea       not null check (length(digest) = 32),
    foreign key (tenant_id, thread_id, turn_id, item_id) references plan_items (tenant_id, thread_id, turn_id, item_id),
    foreign key (approval_id, revision, payload_hash)
        references approval_revisions (approval_id, revision, payload_hash),
    constraint e1_the_hash_is_that_of_the_bytes check (arguments_hash = sha256(arguments)),
    constraint e1_an_approved_effect_names_its_revision check ((approval_id is null) = (revision is null) and (approval_id is null) = (payload_hash is null)),
    constraint e3_committed_means_a_receipt check ((status = 'committed') = (receipt is not null))
);

-- E2: at most one effect of a call, and one of an approval, that may have happened.
create unique index e2_one_effect_per_item on effects (item_id) where status not in ('absent', 'refused') and undoes is null;
create unique index e9_one_undo_per_effect on effects (undoes) where status not in ('absent', 'refused');
create unique index e2_one_effect_per_approval on effects (approval_id) where approval_id is not null and status not in ('absent', 'refused');
create index effects_of_turn on effects (turn_id);
create index effects_open on effects (tenant_id, dispatched_at) where status in ('dispatched', 'unknown');

create trigger e4_effect_moves before update of status on effects
    for each row execute function guard_moves(
        'dispatched>committed', 'dispatched>refused', 'dispatched>absent', 'dispatched>unknown',
        'unknown>committed', 'unknown>absent', 'unknown>abandoned', 'absent>dispatched');

-- E1, G2, T3: the last door. Whoever inserts, or sends again, needs an approval that is still good, or an automatic
-- verdict, and a turn that runs under this epoch. Raised, not filtered, so that no caller can mistake it for a conflict.
create function assent_or_refuse() returns trigger
    language plpgsql set search_path = placet
    as $$
declare
    why text;
begin
    if tg_op = 'UPDATE' and not (old.status = 'absent' and new.status = 'dispatched') then
        return new;
    end if;
    if new.undoes is not null then
        if not exists (select 1 from effects where operation_id = new.undoes and status = 'committed' and item_id = new.item_id) then
            raise exception 'operation % may not be undone: it is not committed', new.undoes
                using errcode = 'PL002', detail = 'nothing_to_undo';
        end if;
        return new;
    end if;
    perform fence(new.thread_id, new.epoch);
    if not exists (select 1 from turns where turn_id = new.turn_id and status = 'running') then
        why := 'turn_not_running';
    elsif new.approval_id is not null then
        if not exists (select 1 from approvals a
                        where approval_id = new.approval_id and item_id = new.item_id and tenant_id = new.tenant_id
                          and thread_id = new.thread_id and turn_id = new.turn_id
                          and status = 'approved' and revision = new.revision and payload_hash = new.payload_hash
                          and quorum <= (select count(*) from decisions d
                                          where d.approval_id = a.approval_id and d.revision = a.revision
                                            and d.kind <> 'reject' and d.user_id <> a.requester)) then
            why := 'not_approved';
        elsif not exists (select 1 from approvals where approval_id = new.approval_id and expires_at > clock()) then
            why := 'approval_expired';
        elsif not exists (select 1 from approval_revisions
                           where approval_id = new.approval_id and revision = new.revision
                             and convert_from(payload, 'UTF8')::jsonb -> 'arguments' = convert_from(new.arguments, 'UTF8')::jsonb) then
            why := 'not_what_was_approved';
        end if;
    elsif not exists (select 1 from plan_items
                       where item_id = new.item_id and tenant_id = new.tenant_id and turn_id = new.turn_id
                         and verdict ->> 'kind' = 'auto' and arguments = new.arguments) then
        why := 'no_verdict';
    end if;
    if why is null and exists (select 1 from plan_items where item_id = new.item_id and result is not null) then
        why := 'call_ended';
    end if;
    if why is not null then
        raise exception 'operation % may not be dispatched: %', new.operation_id, why
            using errcode = 'PL002', detail = why, hint = 'No consequential call leaves without assent to exactly that call.';
    end if;
    return new;
end $$;

create trigger e1_no_effect_without_assent before insert or update of status on effects
    for each row execute function assent_or_refuse();

-- T1: the first transition of a turn that is not confirmed, read from the rows rather than kept beside them.
create function next_step(the_turn uuid, the_status text) returns text
    language sql stable set search_path = placet
    as $$
    select case
        when the_status in ('completed', 'failed', 'exhausted', 'cancelled') then null
        when exists (select 1 from effects where turn_id = the_turn and status in ('dispatched', 'unknown')) then 'reconcile'
        when exists (select 1 from plan_items where turn_id = the_turn and result is null and verdict is null) then 'gate'
        when exists (select 1 from plan_items where turn_id = the_turn and result is null
                        and status in ('awaiting_approval', 'orphaned')) then 'approval'
        when exists (select 1 from plan_items where turn_id = the_turn and result is null) then 'execute'
        else 'plan'
    end
    $$;
