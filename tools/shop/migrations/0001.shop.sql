-- The demo's shop: the business that the agent works for. It belongs to the tools, not to the record.
--
--   customers ──< orders ──1 payments      an order was paid; the captured money is its payment
--                   │
--                   ├──1 refunds_due        the order failed or was cancelled: the money has to go back
--                   └──< tags               what people and the agent wrote on it
--
--   refunds_due:   due ──claimed (operation_id)──▶ refunded          the gateway's answer is stored with it
--                   ▲            │      └────────▶ not_refundable    the gateway refused this line, and says why
--                   └────────────┘                                   the gateway confirmed that nothing was sent
--
-- A refund is claimed by one operation in a transaction of ours *before* the gateway is called, so two calls never send the
-- same refund; it is marked after the gateway has answered. While `operation_id` is set and the status is `due`, the money is
-- on its way: nobody else may send it until that operation has been looked up.
--
-- `operations` holds what was done inside this database under which operation id, in the transaction that did it: there a
-- crash cannot separate the change from its receipt. `imports` and `import_lines` account for every line of an export.
--
-- Every table has the tenant first in its keys, so no row can refer to a row of another tenant.
-- Money is bigint in minor units beside an ISO 4217 currency. The limit of 10^13 keeps the sum of 500 below 2^53.

create schema shop;

create table shop.customers (
    tenant_id   text not null,
    customer_id text not null,
    name        text not null,                     -- as the customer wrote it, any script, any direction mark
    country     text not null default '',
    primary key (tenant_id, customer_id)
);

create table shop.imports (
    tenant_id   text not null,
    import_id   uuid not null,
    file_name   text not null,
    sha256      bytea not null check (length(sha256) = 32),   -- of the uncompressed bytes
    currency    text not null check (currency ~ '^[A-Z]{3}$'),
    report      jsonb not null default '{}',
    imported_at timestamptz not null default now(),
    primary key (tenant_id, import_id),
    constraint a_file_is_imported_once unique (tenant_id, sha256)
);

create table shop.orders (
    tenant_id   text not null,
    order_id    text not null,                     -- of an imported one: its invoice number
    customer_id text,                              -- null: nobody knows whose it is
    batch       text not null,                     -- what was worked on together: a shipping batch, an invoice day
    status      text not null
                check (status in ('paid', 'shipped', 'delivered', 'completed', 'failed', 'cancelled')),
    minor       bigint not null check (minor between -10000000000000 and 10000000000000),   -- an adjustment can be negative
    currency    text not null check (currency ~ '^[A-Z]{3}$'),
    placed_at   timestamptz not null,
    import_id   uuid,
    primary key (tenant_id, order_id),
    foreign key (tenant_id, customer_id) references shop.customers,
    foreign key (tenant_id, import_id) references shop.imports
);

create index orders_by_batch on shop.orders (tenant_id, batch);
create index orders_by_time on shop.orders (tenant_id, placed_at);
create index orders_by_customer on shop.orders (tenant_id, customer_id);

create table shop.payments (
    tenant_id   text not null,
    payment_id  text not null,                     -- the gateway knows it by the same name
    order_id    text not null,
    minor       bigint not null check (minor between 1 and 10000000000000),
    currency    text not null,
    captured_at timestamptz not null,
    assumed     boolean not null default false,    -- an export without payments: taken as captured in full
    primary key (tenant_id, payment_id),
    unique (tenant_id, payment_id, order_id, currency),
    foreign key (tenant_id, order_id) references shop.orders
);

create index payments_by_order on shop.payments (tenant_id, order_id);

create table shop.refunds_due (
    tenant_id     text not null,
    refund_due_id text not null,
    order_id      text not null,
    payment_id    text,
    batch         text not null,
    minor         bigint not null check (minor between 1 and 10000000000000),
    currency      text not null check (currency ~ '^[A-Z]{3}$'),
    reason        text not null,                   -- why the money goes back
    status        text not null default 'due' check (status in ('due', 'refunded', 'not_refundable')),
    why_not       text,                            -- why it cannot go back
    operation_id  text,                            -- who sends it, or has sent it
    external_id   text,                            -- the gateway's own id of the payout
    due_at        timestamptz not null,
    refunded_at   timestamptz,
    primary key (tenant_id, refund_due_id),
    foreign key (tenant_id, order_id) references shop.orders,
    constraint a_refund_is_of_the_orders_own_payment
        foreign key (tenant_id, payment_id, order_id, currency)
        references shop.payments (tenant_id, payment_id, order_id, currency),
    constraint one_refund_per_order unique (tenant_id, order_id),
    constraint what_can_be_refunded_has_a_payment check (status = 'not_refundable' or payment_id is not null),
    constraint not_refundable_says_why check ((status = 'not_refundable') = (why_not is not null)),
    constraint refunded_has_its_proof check (
        (status = 'refunded') = (external_id is not null and refunded_at is not null)
        and (status <> 'refunded' or operation_id is not null))
);

-- The precondition of a refund counts these: how many are due in a batch.
create index refunds_due_in_batch on shop.refunds_due (tenant_id, batch) where status = 'due';
create index refunds_of_operation on shop.refunds_due (tenant_id, operation_id) where operation_id is not null;

create table shop.operations (
    tenant_id    text not null,
    operation_id text not null,                    -- the key under which a change of this database happened once
    tool         text not null,
    arguments    jsonb not null,
    receipt      jsonb not null,
    undoes       text,                             -- the operation that this one took back
    done_at      timestamptz not null default now(),
    primary key (tenant_id, operation_id),
    foreign key (tenant_id, undoes) references shop.operations,
    constraint an_operation_is_undone_once unique (tenant_id, undoes)
);

create table shop.tags (
    tenant_id    text not null,
    order_id     text not null,
    tag          text not null check (tag <> ''),
    operation_id text not null,                    -- which operation wrote it; undoing removes exactly its own
    primary key (tenant_id, order_id, tag),
    foreign key (tenant_id, order_id) references shop.orders,
    -- The receipt says which tags are new, so the operation's row is written after them.
    foreign key (tenant_id, operation_id) references shop.operations deferrable initially deferred
);

create index tags_of_operation on shop.tags (tenant_id, operation_id);

create table shop.reports (
    tenant_id    text not null,
    report_id    text not null,
    operation_id text not null,
    title        text not null,
    body         jsonb not null,
    drafted_at   timestamptz not null default now(),
    primary key (tenant_id, report_id),
    foreign key (tenant_id, operation_id) references shop.operations deferrable initially deferred
);

create table shop.import_lines (
    tenant_id  text not null,
    import_id  uuid not null,
    line       int not null,                       -- where the record begins in the file; the header is line 1
    kind       text not null
               check (kind in ('sale', 'cancellation', 'negative_quantity', 'zero_price', 'adjustment',
                               'known_invoice', 'blank', 'broken')),
    problem    text,                               -- of a broken line: what was expected and what came
    raw        text,                               -- of a broken line: its beginning, odd bytes escaped
    invoice    text,
    code       text,
    description text,
    quantity   bigint,
    unit_price numeric(18, 6),                     -- a price of one piece can be below a minor unit (0.001)
    at         timestamptz,
    customer   text,
    country    text,
    primary key (tenant_id, import_id, line),
    foreign key (tenant_id, import_id) references shop.imports,
    constraint a_line_is_read_or_says_why check (
        case when kind = 'broken' then problem is not null
             when kind = 'blank' then true
             else invoice is not null and quantity is not null and unit_price is not null and at is not null
        end)
);

create index import_lines_by_invoice on shop.import_lines (tenant_id, import_id, invoice);
