-- Approvals: one request to people to decide one call.
--
--   pending ──decide──▶ approved ──dispatch──▶ (used up by its effect)
--      │                   └──▶ stale | expired | cancelled | superseded | orphaned   (until dispatch)
--      └──▶ rejected | expired | stale | superseded | cancelled | orphaned            (final)
--
-- The gate asks (A1). What was shown is a revision: bytes and their hash, never changed in place; an edit is the next
-- revision (A8). A decision names the hash of what its author saw, and a foreign key holds it to that (A2, I5).
-- `digest` authenticates the row over its identity, so that a copied or moved row is worth nothing (V6).

set search_path = placet, public;

create table approvals (
    approval_id     uuid        primary key,            -- uuid5(item, number of the ask): asked again after a crash, found again
    tenant_id       text        not null,
    thread_id       uuid        not null,
    turn_id         uuid        not null,
    item_id         uuid        not null,
    ask             int         not null check (ask >= 0),   -- a stale ask is followed by the next
    status          text        not null default 'pending'
                    check (status in ('pending', 'approved', 'rejected', 'expired', 'stale', 'superseded', 'cancelled', 'orphaned')),
    revision        int         not null default 0,
    payload_hash    bytea       not null check (length(payload_hash) = 32),
    tool            text        not null,
    requester       text        not null,               -- may not decide (A5)
    duty            text        not null,
    quorum          int         not null default 1 check (quorum >= 1),
    confirm         text        not null default 'click',     -- friction: from one click up to typing the total (I4)
    rule            text        not null,
    reason          text        not null,
    policy_version  text        not null,
    policy_error    text,
    rationale       text        not null default '',    -- the agent's own words, untrusted
    difference      jsonb,                              -- what moved since the ask before (A7)
    asked_at        timestamptz not null default clock(),
    expires_at      timestamptz not null,
    decided_at      timestamptz,
    closed_at       timestamptz,
    closed_because  text,
    key_id          text        not null,
    digest          bytea       not null check (length(digest) = 32),
    unique (item_id, ask),
    foreign key (tenant_id, thread_id, turn_id, item_id) references plan_items (tenant_id, thread_id, turn_id, item_id),
    foreign key (tenant_id, requester) references users,
    check (expires_at > asked_at)
);

-- A3: while one ask of a call is open, there is no other.
create unique index a3_one_open_ask on approvals (item_id) where status in ('pending', 'approved');

-- The inbox reads this and nothing else: what expires first, first.
create index approvals_waiting on approvals (tenant_id, expires_at, approval_id) where status = 'pending';
create index approvals_of_turn on approvals (turn_id);

create trigger a3_approval_moves before update of status on approvals
    for each row execute function guard_moves(
        'pending>approved', 'pending>rejected', 'pending>expired', 'pending>stale', 'pending>superseded',
        'pending>cancelled', 'pending>orphaned',
        'approved>stale', 'approved>expired', 'approved>cancelled', 'approved>superseded', 'approved>orphaned');

create table approval_revisions (
    approval_id   uuid        not null references approvals deferrable initially deferred,
    revision      int         not null check (revision >= 0),
    payload       bytea       not null,                 -- RFC 8785 bytes of {tool, schema_version, arguments, facts} (A2)
    payload_hash  bytea       not null,
    preview       jsonb       not null,                 -- as shown: title, impact, sample, reversible, warnings (A1)
    precondition  jsonb       not null,                 -- the facts that justified it, {name: value}
    made_by       text        not null,                 -- 'gate', or the reviewer who edited (A8)
    made_at       timestamptz not null default clock(),
    primary key (approval_id, revision),
    unique (approval_id, revision, payload_hash),
    constraint a2_the_hash_is_that_of_the_bytes check (payload_hash = sha256(payload))
);

create trigger a2_revisions_are_final before update or delete on approval_revisions
    for each row execute function guard_unchanged();

alter table approvals add constraint a2_what_is_pending_is_a_stored_revision
    foreign key (approval_id, revision, payload_hash)
    references approval_revisions (approval_id, revision, payload_hash) deferrable initially deferred;

create table decisions (
    approval_id   uuid        not null,
    revision      int         not null,
    user_id       text        not null,
    tenant_id     text        not null,
    kind          text        not null check (kind in ('approve', 'approve_with_changes', 'reject')),
    payload_hash  bytea       not null,                 -- of what its author was shown
    reason        text,
    channel       text        not null,                 -- cli, notebook, api, inbox, agent_inbox …
    decided_at    timestamptz not null default clock(),
    constraint a3_one_vote_per_person_and_revision primary key (approval_id, revision, user_id),
    foreign key (tenant_id, user_id) references users,
    foreign key (approval_id, revision, payload_hash)
        references approval_revisions (approval_id, revision, payload_hash),
    constraint a3_a_rejection_has_a_reason check (kind <> 'reject' or coalesce(reason, '') ~ '\S')
);

create trigger a3_decisions_are_final before update or delete on decisions
    for each row execute function guard_unchanged();
