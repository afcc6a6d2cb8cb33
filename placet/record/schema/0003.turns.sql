-- Turns: one user request each, from message to final answer.
--
--   created ──claimed──▶ running ──▶ completed | failed | exhausted | cancelled      (ended)
--                          │  ▲
--                          ▼  │ a run claims the thread again
--                awaiting_approval | awaiting_reconciliation | paused ──▶ cancelled
--
-- A person may retry a failed turn: it is created again and goes on at its next step (T2).
--
-- A run is one segment of a turn; recovery is another attempt of the same run under a new epoch.
-- A model's answer is stored before anything acts on it (G1), with one plan item per tool call.
-- A plan item ends exactly once, with exactly one result (G5):
--
--   proposed ─▶ invalid | denied | deferred
--            ─▶ awaiting_approval ─▶ approved ─▶ executing ─▶ completed | failed | unknown (open)
--            ─▶ executing (automatic)        └▶ rejected | expired | superseded | cancelled | orphaned

set search_path = placet, public;

create table turns (
    turn_id      uuid        primary key,
    tenant_id    text        not null,
    thread_id    uuid        not null,
    ordinal      int         not null,
    message      text        not null,
    command      jsonb       not null default '{}',    -- kind, parameters, confirmations: what the gate made of it (T1)
    status       text        not null default 'created'
                 check (status in ('created', 'running', 'awaiting_approval', 'awaiting_reconciliation', 'paused',
                                   'completed', 'failed', 'exhausted', 'cancelled')),
    steps        int         not null default 0,       -- model turns used (G6)
    max_steps    int         not null check (max_steps >= 1),
    output_text  text,
    error        jsonb,                                -- {code, message, retryable}
    resume_at    timestamptz,
    created_at   timestamptz not null default clock(),
    updated_at   timestamptz not null default clock(),
    ended_at     timestamptz,
    unique (thread_id, ordinal),
    unique (tenant_id, turn_id),
    unique (tenant_id, thread_id, turn_id),
    foreign key (tenant_id, thread_id) references threads (tenant_id, thread_id),
    constraint t1_ended_turns_have_a_time
        check ((status in ('completed', 'failed', 'exhausted', 'cancelled')) = (ended_at is not null))
);

-- T4: others wait their turn.
create unique index t4_one_started_turn on turns (thread_id)
    where status in ('running', 'awaiting_approval', 'awaiting_reconciliation', 'paused');

create index turns_by_status on turns (tenant_id, status, updated_at);

create trigger t6_turn_moves before update of status on turns
    for each row execute function guard_moves(
        'created>running', 'created>cancelled',
        'running>awaiting_approval', 'running>awaiting_reconciliation', 'running>paused',
        'running>completed', 'running>failed', 'running>exhausted', 'running>cancelled',
        'awaiting_approval>running', 'awaiting_approval>paused', 'awaiting_approval>cancelled',
        'awaiting_reconciliation>running', 'awaiting_reconciliation>paused', 'awaiting_reconciliation>cancelled',
        'paused>running', 'paused>cancelled',
        'failed>created');                              -- a person retries (T2)

create table runs (
    run_id      uuid        primary key,
    tenant_id   text        not null,
    thread_id   uuid        not null,
    turn_id     uuid        not null,
    because     text        not null,                  -- what made it due: 'message', 'decision:…', 'cancel', 'parked'
    status      text        not null default 'due' check (status in ('due', 'running', 'ended')),
    attempt     int         not null default 0,        -- 1 when claimed, 2 when taken up after a lapsed lease …
    epoch       bigint,
    outcome     text,                                  -- the turn's status when it was released
    due_at      timestamptz not null default clock(),
    started_at  timestamptz,
    ended_at    timestamptz,
    foreign key (tenant_id, thread_id, turn_id) references turns (tenant_id, thread_id, turn_id),
    check ((status = 'due') = (epoch is null)),
    check ((status = 'ended') = (ended_at is not null))
);

create unique index o1_one_running_run on runs (thread_id) where status = 'running';
create unique index one_due_run_per_turn on runs (turn_id) where status = 'due';   -- two knocks are one run
create index runs_due on runs (due_at) where status = 'due';
create index runs_of_turn on runs (turn_id);

create trigger run_moves before update of status on runs
    for each row execute function guard_moves('due>running', 'due>ended', 'running>ended');

create table model_answers (
    turn_id     uuid        not null references turns,
    step        int         not null check (step >= 1),
    tenant_id   text        not null,
    answer      jsonb       not null,
    created_at  timestamptz not null default clock(),
    primary key (turn_id, step)                         -- G1: the recorded answer counts, another one changes nothing
);

create trigger g1_answers_are_final before update or delete on model_answers
    for each row execute function guard_unchanged();

create table plan_items (
    item_id         uuid        primary key,            -- uuid5(thread, turn, step, ordinal)
    tenant_id       text        not null,
    thread_id       uuid        not null,
    turn_id         uuid        not null,
    step            int         not null,
    ordinal         int         not null,
    call_id         text        not null,               -- the provider's, unique within the answer
    tool            text        not null,
    proposed        jsonb       not null,               -- arguments as the model gave them
    mode            text        check (mode in ('safe_readonly', 'mutating', 'confirm_once')),
    schema_version  text,                               -- of the tool when the call was gated (G8)
    arguments       bytea,                              -- RFC 8785 bytes of the validated arguments
    facts           jsonb,
    verdict         jsonb,                              -- frozen by the gate (G2, P8)
    status          text        not null default 'proposed'
                    check (status in ('proposed', 'invalid', 'denied', 'deferred', 'awaiting_approval', 'approved',
                                      'executing', 'completed', 'failed', 'rejected', 'expired', 'superseded',
                                      'cancelled', 'orphaned', 'unknown')),
    result          jsonb,                              -- what the model is told (G5)
    proposed_at     timestamptz not null default clock(),
    gated_at        timestamptz,
    started_at      timestamptz,
    finished_at     timestamptz,
    unique (turn_id, step, ordinal),
    unique (turn_id, step, call_id),
    unique (tenant_id, thread_id, turn_id, item_id),
    foreign key (tenant_id, thread_id, turn_id) references turns (tenant_id, thread_id, turn_id),
    constraint g5_an_ended_call_has_a_result
        check ((status in ('invalid', 'denied', 'deferred', 'completed', 'failed', 'rejected', 'expired', 'superseded',
                           'cancelled')) = (result is not null)),
    constraint g2_a_gated_call_has_a_verdict check (verdict is null or arguments is not null)
);

create index plan_items_open on plan_items (turn_id) where result is null;
create index plan_items_orphaned on plan_items (tenant_id, tool) where status = 'orphaned';

create trigger g5_item_moves before update of status on plan_items
    for each row execute function guard_moves(
        'proposed>invalid', 'proposed>denied', 'proposed>deferred', 'proposed>awaiting_approval', 'proposed>executing',
        'proposed>failed', 'proposed>cancelled', 'proposed>superseded', 'proposed>orphaned',
        'awaiting_approval>approved', 'awaiting_approval>rejected', 'awaiting_approval>expired',
        'awaiting_approval>superseded', 'awaiting_approval>cancelled', 'awaiting_approval>orphaned',
        'awaiting_approval>denied', 'awaiting_approval>failed',
        'approved>executing', 'approved>awaiting_approval', 'approved>expired', 'approved>denied', 'approved>cancelled',
        'approved>superseded', 'approved>orphaned', 'approved>failed', 'approved>unknown',
        'executing>completed', 'executing>failed', 'executing>unknown', 'executing>cancelled',
        -- It is confirmed that nothing was sent, and the checks before sending it again find something (E5, A7).
        'executing>awaiting_approval', 'executing>denied', 'executing>orphaned',
        'unknown>awaiting_approval', 'unknown>denied', 'unknown>orphaned',
        'unknown>completed', 'unknown>failed', 'unknown>executing', 'unknown>cancelled',
        'orphaned>cancelled', 'orphaned>awaiting_approval', 'orphaned>superseded', 'orphaned>failed');

create function guard_result() returns trigger
    language plpgsql
    as $$
begin
    if old.result is not null and new.result is distinct from old.result then
        raise exception 'call % already has its result', old.item_id using errcode = 'PL003';
    end if;
    return new;
end $$;

create trigger g5_one_result before update of result on plan_items
    for each row execute function guard_result();
