-- The payment gateway: somebody else's system. It shares the server only because a demo has one; our code reaches it through
-- tools/shop/gateway.py alone, in transactions of its own.
--
--   payments   what it has taken from customers: captured, or authorised and never captured
--   batches    a request to refund, taken whole under one idempotency key, with the answer that it gave
--   payouts    its ledger: one row per line that it sent
--   faults     how it misbehaves at present, for tests and demonstrations
--
-- The ledger has no uniqueness by refund or payment, on purpose: asked again under another key, this gateway pays again, as
-- real ones do. So a duplicate payment is visible to whoever counts. That one key pays once is kept by a lock on the key
-- and the newest batch of the last 24 hours; afterwards the key is forgotten and would pay again.

create schema gateway;

create table gateway.payments (
    tenant_id  text not null,                      -- the merchant's account
    payment_id text not null,
    minor      bigint not null check (minor > 0),
    currency   text not null check (currency ~ '^[A-Z]{3}$'),
    status     text not null default 'captured' check (status in ('captured', 'authorised')),
    primary key (tenant_id, payment_id)
);

create table gateway.batches (
    tenant_id       text not null,
    batch_id        text not null,
    idempotency_key text not null,
    body_sha256     bytea not null check (length(body_sha256) = 32),
    receipt         jsonb not null,
    received_at     timestamptz not null default now(),
    primary key (tenant_id, batch_id)
);

create index batches_by_key on gateway.batches (tenant_id, idempotency_key, received_at desc);

create table gateway.payouts (
    tenant_id  text not null,
    payout_id  text not null,
    batch_id   text not null,
    ref        text not null,                      -- what the merchant calls the line
    payment_id text not null,
    minor      bigint not null check (minor > 0),
    currency   text not null,
    sent_at    timestamptz not null default now(),
    primary key (tenant_id, payout_id),
    foreign key (tenant_id, batch_id) references gateway.batches,
    foreign key (tenant_id, payment_id) references gateway.payments
);

create index payouts_by_ref on gateway.payouts (tenant_id, ref);

create table gateway.faults (
    tenant_id        text primary key,
    refuses          text,                                       -- answers no to every batch, with this reason
    takes_after      double precision not null default 0,        -- seconds before it pays
    answers_after    double precision not null default 0,        -- seconds between paying and answering
    drops_the_answer boolean not null default false,             -- pays, then the connection breaks
    silent           boolean not null default false              -- does not answer when asked about a key
);
