-- Deleted customers. One without orders leaves no row behind. One whose orders the books must keep becomes a tombstone: the
-- id, which the orders refer to, and when and under which operation it was deleted. Name and country are gone.

alter table shop.customers
    add column deleted_at   timestamptz,
    add column operation_id text,
    add constraint a_tombstone_says_what_made_it check ((deleted_at is null) = (operation_id is null)),
    add constraint a_tombstone_has_no_name check (deleted_at is null or (name = 'deleted customer' and country = '')),
    -- The receipt says who was deleted, so the operation's row is written after them.
    add constraint a_tombstone_has_its_operation
        foreign key (tenant_id, operation_id) references shop.operations deferrable initially deferred;
