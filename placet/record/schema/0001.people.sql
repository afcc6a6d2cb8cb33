-- Placet's own tables, in schema `placet`. Read in the order of their numbers:
--
--   0001 people     who asks, who decides, with which key
--   0002 threads    one conversation each; who works on it now (runs, lease, epoch)
--   0003 turns      one request each: the model's answers and the calls it proposed (plan items)
--   0004 approvals  what people are asked, in revisions, and what they decided
--   0005 effects    what was sent into the world, once, with its receipt
--   0006 record     the timeline (events) and the audit chain
--
-- Promises that the tables keep by themselves, whatever the code does:
--   A2  what was shown is kept as bytes whose SHA-256 is checked; a revision is never changed
--   A3  one open ask per call; one vote per person and revision; final is final
--   E1  no effect without an automatic verdict or a valid approval of exactly these bytes, on a running turn
--   E2  one effect per call and per approval that is not absent or refused
--   O1  one running run per thread;  O2  a stale epoch writes nothing;  T4  one started turn per thread
--   V1  events without gaps;  V3  audit rows that the application cannot change
--
-- Lock order, everywhere: thread, then approval, then effect, then the audit chain.
-- A thread is locked `for no key update`, so that foreign keys to it do not wait.
-- Every row has a tenant, and foreign keys carry it, so that a row cannot point into another tenant.

create schema if not exists placet;
set search_path = placet, public;

-- The one clock: the database's. Tests move it; nobody else may (the application's role can only read it).
create table clock_offset (shift interval not null default interval '0');
insert into clock_offset default values;
create unique index clock_offset_is_one_row on clock_offset ((true));

create function clock() returns timestamptz
    language sql stable set search_path = placet
    as $$ select now() + shift from clock_offset $$;

-- A status only moves along the arrows that its table names: `before update` with arguments 'from>to', …
create function guard_moves() returns trigger
    language plpgsql
    as $$
begin
    if new.status is distinct from old.status and not (old.status || '>' || new.status) = any (tg_argv) then
        raise exception '% % cannot become %', tg_table_name, old.status, new.status
            using errcode = 'PL003', hint = 'It was moved by somebody else; read it again.';
    end if;
    return new;
end $$;

create function guard_unchanged() returns trigger
    language plpgsql
    as $$
begin
    raise exception 'rows of % are never changed or removed', tg_table_name using errcode = 'PL004';
end $$;

create table users (
    tenant_id   text        not null check (tenant_id <> ''),
    user_id     text        not null check (user_id ~ '^[a-z0-9][a-z0-9._@-]{0,62}$'),
    name        text        not null,
    roles       text[]      not null check (roles <@ array['requester', 'reviewer', 'operator', 'auditor'] and cardinality(roles) > 0),
    duties      text[]      not null default '{}',     -- what a reviewer may decide (A5)
    locale      text        not null default 'en' check (locale in ('en', 'es')),
    created_at  timestamptz not null default clock(),
    removed_at  timestamptz,                            -- tombstone: decisions keep pointing here (V3)
    primary key (tenant_id, user_id)
);

create table api_keys (
    key_id      uuid        primary key,
    tenant_id   text        not null,
    user_id     text        not null,
    key_hash    bytea       not null unique check (length(key_hash) = 32),   -- never the key
    label       text        not null default '',
    created_at  timestamptz not null default clock(),
    expires_at  timestamptz,
    revoked_at  timestamptz,
    foreign key (tenant_id, user_id) references users
);
