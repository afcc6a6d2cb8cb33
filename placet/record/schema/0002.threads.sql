-- Threads: one conversation each. Who works on it is written here, not in a lock or a queue:
--
--   due run ──claim: epoch + 1, owner, lease──▶ running run ──release──▶ ended run
--                        ▲                          │ the lease lapses
--                        └───── another worker, epoch + 1, same run, next attempt
--
-- `epoch` is the fencing token: whatever a run writes names it, and a stale one is refused (O2).
-- `seq` counts the thread's events; taking the next number under an epoch is a fence at the same time (V1).
-- A turn of a thread is stored in 0003; a run belongs to one turn.

set search_path = placet, public;

create table threads (
    thread_id    uuid        primary key,
    tenant_id    text        not null,
    requester    text        not null,                 -- whose conversation it is; never its own reviewer (A5)
    locale       text        not null default 'en',
    context      jsonb       not null default '{}',    -- scopes and whatever else the session knows
    epoch        bigint      not null default 0,
    owner        text,                                 -- the process that works on it now
    lease_until  timestamptz,
    seq          bigint      not null default 0,
    created_at   timestamptz not null default clock(),
    removed_at   timestamptz,                          -- tombstone: approvals and effects outlive it (V3)
    unique (tenant_id, thread_id),
    foreign key (tenant_id, requester) references users,
    constraint o1_owner_has_a_lease check ((owner is null) = (lease_until is null))
);

-- O3: leases that lapsed.
create index threads_owned on threads (lease_until) where owner is not null;

create function guard_epoch() returns trigger
    language plpgsql
    as $$
begin
    if new.epoch < old.epoch or new.seq < old.seq then
        raise exception 'thread %: epoch and seq only grow', old.thread_id using errcode = 'PL003';
    end if;
    return new;
end $$;

create trigger o2_epoch_only_grows before update of epoch, seq on threads
    for each row execute function guard_epoch();

-- O2: the first statement of every checkpoint write. `for share` waits for a claim that is under way and then sees it.
-- Such a write is a pipeline without `begin`, to which no idle time-out applies: a process that is stopped in it would keep
-- everybody off the thread. Where the server knows a time-out for whole transactions (17), it ends this one.
create function fence(the_thread uuid, the_epoch bigint) returns void
    language plpgsql set search_path = placet
    as $$
begin
    if current_setting('transaction_timeout', true) = '0' then
        perform set_config('transaction_timeout', '15s', true);
    end if;
    perform 1 from threads where thread_id = the_thread and epoch = the_epoch for share;
    if not found then
        raise exception 'epoch % of thread % is stale', the_epoch, the_thread
            using errcode = 'PL001', hint = 'Another run owns the thread now; this one writes nothing more.';
    end if;
end $$;
