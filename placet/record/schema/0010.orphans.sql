-- An automatic call that was orphaned needs nobody's decision: when an operator migrates its turn, it executes under the
-- verdict that was frozen for it (G8). The last door (0005) looks at that verdict as always.

set search_path = placet, public;

drop trigger g5_item_moves on plan_items;
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
        'executing>awaiting_approval', 'executing>denied', 'executing>orphaned',
        'unknown>awaiting_approval', 'unknown>denied', 'unknown>orphaned',
        'unknown>completed', 'unknown>failed', 'unknown>executing', 'unknown>cancelled',
        'orphaned>cancelled', 'orphaned>awaiting_approval', 'orphaned>superseded', 'orphaned>failed',
        'orphaned>executing');
