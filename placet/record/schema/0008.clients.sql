-- What clients of the LangGraph endpoints need to find again: a thread's metadata, their own runs, what a run streamed.
--
-- A client's run is no second way to execute: it points at the segment of a turn (`runs`) that does what was asked, and
-- its status is that segment's. Two clients can have asked for the same segment (two decisions before one claim).
-- Parts of a stream are written by the process that runs the segment, under its epoch (O2), so that any server process
-- can send them, from any part on, also after a restart (L1). They are no record: they are pruned when the run is old.

set search_path = placet, public;

alter table threads add column metadata jsonb not null default '{}';   -- the client's own words; nothing here decides
create index threads_by_metadata on threads using gin (metadata jsonb_path_ops);
create index threads_newest on threads (tenant_id, created_at desc, thread_id) where removed_at is null;
create index runs_open_of_thread on runs (thread_id) where status <> 'ended';

create table client_runs (
    client_run_id      uuid        primary key,
    tenant_id          text        not null,
    thread_id          uuid        not null,
    turn_id            uuid        not null,
    run_id             uuid        not null references runs,       -- the segment that does what was asked
    asked_by           text        not null,
    kind               text        not null check (kind in ('message', 'resume', 'wake', 'update')),
    metadata           jsonb       not null default '{}',
    multitask_strategy text        not null default 'enqueue'
                       check (multitask_strategy in ('enqueue', 'reject', 'interrupt', 'rollback')),
    modes              text[]      not null default '{}',          -- what is to be streamed; none: the outcome only
    subgraphs          boolean     not null default false,
    applied            jsonb       not null default '{}',          -- where a rule won over the client's wish (L1)
    created_at         timestamptz not null default clock(),
    removed_at         timestamptz,                                 -- tombstone: what it did stays
    foreign key (tenant_id, thread_id, turn_id) references turns (tenant_id, thread_id, turn_id),
    foreign key (tenant_id, asked_by) references users
);

create index client_runs_of_thread on client_runs (thread_id, created_at desc, client_run_id);
create index client_runs_of_run on client_runs (run_id);

create table stream_parts (
    run_id     uuid        not null references runs,
    n          bigint      not null,                                -- grows with each part and attempt of the run
    mode       text        not null,
    namespace  text[]      not null default '{}',
    data       text        not null,                                -- JSON
    at         timestamptz not null default clock(),
    primary key (run_id, n)
);

create index stream_parts_old on stream_parts (at);

-- Followers of a run are told when it starts and ends; what it streams is told by who writes it.
create function tell_run_moved() returns trigger
    language plpgsql set search_path = placet
    as $$
begin
    perform pg_notify('placet_stream', new.run_id::text)
       from (select 1 from client_runs where run_id = new.run_id limit 1) followed;
    return null;
end $$;

create trigger l1_run_moved after update of status on runs
    for each row when (new.status is distinct from old.status) execute function tell_run_moved();
