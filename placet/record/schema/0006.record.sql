-- The record: a timeline per thread for those who follow it, and one audit chain per tenant for those who ask later.
--
-- Events are numbered without gaps per thread: the number is taken from the thread's row in the same transaction, which
-- is also the fence when a run writes it (V1, O2). Audit rows are chained by hash and can only be appended, through one
-- function that runs with the owner's rights: the application's role has no other way in (V3).

set search_path = placet, public;

create table events (
    thread_id  uuid        not null,
    seq        bigint      not null,
    tenant_id  text        not null,
    turn_id    uuid,
    item_id    uuid,
    type       text        not null
               check (type in ('turn_started', 'plan_updated', 'tool_started', 'tool_progress', 'tool_completed',
                               'tool_failed', 'approval_requested', 'approval_decided', 'approval_closed',
                               'effect_unknown', 'effect_reconciled', 'turn_paused', 'turn_resumed', 'turn_completed',
                               'turn_failed', 'turn_exhausted', 'turn_cancelled')),
    payload    jsonb       not null default '{}',
    epoch      bigint,                                  -- of the run that wrote it; none: a decider or a sweeper
    at         timestamptz not null default clock(),
    primary key (thread_id, seq),
    foreign key (tenant_id, thread_id) references threads (tenant_id, thread_id)
);

create index events_of_turn on events (turn_id, seq);

create trigger v1_events_are_final before update on events
    for each row execute function guard_unchanged();

-- Append one event; with an epoch it is refused when stale (O2). Returns its number.
create function append_event(the_thread uuid, the_epoch bigint, the_type text, the_turn uuid, the_item uuid, the_payload jsonb)
    returns bigint
    language plpgsql set search_path = placet
    as $$
declare
    the_tenant text;
    the_seq    bigint;
begin
    update threads set seq = seq + 1
     where thread_id = the_thread and (the_epoch is null or epoch = the_epoch)
    returning tenant_id, seq into the_tenant, the_seq;
    if not found then
        raise exception 'epoch % of thread % is stale', the_epoch, the_thread
            using errcode = 'PL001', hint = 'Another run owns the thread now; this one writes nothing more.';
    end if;
    insert into events (thread_id, seq, tenant_id, turn_id, item_id, type, payload, epoch)
    values (the_thread, the_seq, the_tenant, the_turn, the_item, the_type, the_payload, the_epoch);
    return the_seq;
end $$;

create table audit (
    tenant_id  text        not null,
    n          bigint      not null check (n >= 1),
    at         timestamptz not null,
    actor      text        not null,                    -- a user, 'policy', or the process that acted
    action     text        not null,                    -- asked, approved, rejected, dispatched, committed …
    subject    text        not null,                    -- kind:id
    body       bytea       not null,                    -- RFC 8785 bytes: what they saw, what came back
    previous   bytea       not null check (length(previous) = 32),
    hash       bytea       not null,
    primary key (tenant_id, n)
);

create table audit_heads (
    tenant_id  text   primary key,
    n          bigint not null,
    hash       bytea  not null
);

-- The bytes that are hashed: length-prefixed, so that no two rows read alike.
create function audit_hash(previous bytea, n bigint, at timestamptz, actor text, action text, subject text, body bytea)
    returns bytea
    language sql immutable
    as $$
    select sha256(previous || int8send(n) || int8send((extract(epoch from at) * 1000000)::bigint)
        || int4send(length(convert_to(actor, 'UTF8'))) || convert_to(actor, 'UTF8')
        || int4send(length(convert_to(action, 'UTF8'))) || convert_to(action, 'UTF8')
        || int4send(length(convert_to(subject, 'UTF8'))) || convert_to(subject, 'UTF8')
        || body)
    $$;

alter table audit add constraint v3_the_hash_is_that_of_the_row
    check (hash = audit_hash(previous, n, at, actor, action, subject, body));

create trigger v3_audit_is_final before update or delete on audit
    for each row execute function guard_unchanged();

-- Append to the tenant's chain. Last in a transaction: it locks the chain's head until the commit.
create function append_audit(the_tenant text, the_actor text, the_action text, the_subject text, the_body bytea)
    returns bigint
    language plpgsql security definer set search_path = placet, pg_temp
    as $$
declare
    head   audit_heads;
    moment timestamptz := clock();
begin
    insert into audit_heads values (the_tenant, 0, decode(repeat('00', 32), 'hex')) on conflict do nothing;
    select * into head from audit_heads where tenant_id = the_tenant for update;
    insert into audit values (the_tenant, head.n + 1, moment, the_actor, the_action, the_subject, the_body, head.hash,
        audit_hash(head.hash, head.n + 1, moment, the_actor, the_action, the_subject, the_body));
    update audit_heads
       set n = head.n + 1, hash = audit_hash(head.hash, head.n + 1, moment, the_actor, the_action, the_subject, the_body)
     where tenant_id = the_tenant;
    return head.n + 1;
end $$;
