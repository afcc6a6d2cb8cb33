-- A request that is sent again, because nobody heard the answer, is the same request: one turn per key of a person.

set search_path = placet, public;

create table request_keys (
    tenant_id   text        not null,
    user_id     text        not null,
    key         text        not null check (length(key) between 1 and 200),
    hash        bytea       not null check (octet_length(hash) = 32),      -- SHA-256 of what was asked
    turn_id     uuid        not null references turns,
    at          timestamptz not null default clock(),
    primary key (tenant_id, user_id, key),
    foreign key (tenant_id, user_id) references users
);
