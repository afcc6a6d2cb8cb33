-- How people prove who they are to the server: API keys (0001) and, per OpenID Connect issuer, the subject that is them.
-- And the indexes by which lists are paged: newest first, the id decides between equals.

set search_path = placet, public;

create table subjects (
    issuer      text        not null,
    subject     text        not null check (length(subject) between 1 and 255),
    tenant_id   text        not null,
    user_id     text        not null,
    created_at  timestamptz not null default clock(),
    primary key (issuer, subject),                      -- one person per subject, in one tenant
    foreign key (tenant_id, user_id) references users
);

create index api_keys_of_user on api_keys (tenant_id, user_id);
create index turns_by_age on turns (tenant_id, created_at desc, turn_id desc);
create index approvals_by_age on approvals (tenant_id, asked_at desc, approval_id desc);
create index effects_by_age on effects (tenant_id, first_dispatched_at desc, operation_id desc);
