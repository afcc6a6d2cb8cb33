-- No turn waits for an undo, which is a person's own business (E9): what is next does not count it (T1). Otherwise as in
-- 0005.

set search_path = placet, public;

create or replace function next_step(the_turn uuid, the_status text) returns text
    language sql stable set search_path = placet
    as $$
    select case
        when the_status in ('completed', 'failed', 'exhausted', 'cancelled') then null
        when exists (select 1 from effects where turn_id = the_turn and status in ('dispatched', 'unknown')
                        and undoes is null) then 'reconcile'
        when exists (select 1 from plan_items where turn_id = the_turn and result is null and verdict is null) then 'gate'
        when exists (select 1 from plan_items where turn_id = the_turn and result is null
                        and status in ('awaiting_approval', 'orphaned')) then 'approval'
        when exists (select 1 from plan_items where turn_id = the_turn and result is null) then 'execute'
        else 'plan'
    end
    $$;
