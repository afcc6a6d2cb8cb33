-- Who writes into a thread's conversation asks for what follows, as much as its requester does, and does not decide it (A5).

set search_path = placet, public;

alter table threads add column steered_by text[] not null default '{}';   -- operators who wrote into the conversation

create function guard_not_who_steered() returns trigger
    language plpgsql set search_path = placet
    as $$
begin
    if exists (select 1 from approvals a join threads t using (thread_id)
                where a.approval_id = new.approval_id and new.user_id = any (t.steered_by)) then
        raise exception '% wrote into the conversation that approval % comes from', new.user_id, new.approval_id
            using errcode = 'check_violation', constraint = 'a5_who_steers_does_not_decide';
    end if;
    return new;
end $$;

create trigger a5_who_steers_does_not_decide before insert on decisions
    for each row execute function guard_not_who_steered();
