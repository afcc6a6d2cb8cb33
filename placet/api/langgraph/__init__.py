"""LangGraph's endpoints, on our own turns, runs and approvals: there is no second way to execute (L1, L2).

admission  what a client's run becomes        answers  the clients' answers to a pause, read into decisions
sending    streams and outcomes               state    checkpoints in LangGraph's form
steering   what an operator may write         threads, runs, assistants  the routes
"""

from fastapi import APIRouter

from placet.api.langgraph import assistants, runs, threads

router = APIRouter()
router.include_router(assistants.router)
router.include_router(threads.router)
router.include_router(runs.router)
