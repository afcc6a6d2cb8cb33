"""Nothing twice, nothing lost: shown by killing, cutting, restarting and overtaking workers at every point.

    points.py     which points there are, read from the code itself
    world.py      the outside world of the matrix, and its witness, which counts for itself
    stories.py    what people ask, decide and look up: one turn each, from message to end
    zygote.py     forks worker processes that have everything imported; child.py is what they do
    slots.py      where a case runs: a database of its own, a worker, and another that takes over
    case.py       one story, with one fault at one point
    judge.py      what must be true afterwards, asked of the witness and of the rows
    matrix.py     every point × every fault × every story; what is left out, and why
    soak.py       the same by chance, for ten minutes

`python -m tests.crash` (make crash) runs the whole matrix; tests/crash/test_matrix.py a part of it.
"""
