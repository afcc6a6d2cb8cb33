"""How a turn moves.

    plan → gate → (one pipeline per call: approval → execute → reconcile) → plan → … → end

`build` wires the nodes; each stands in a file of its own. `advance` runs one segment of a turn.
"""

from functools import partial
from typing import Any, Literal

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Send

from graph.approval import approval
from graph.contained import contained
from graph.execute import execute
from graph.gate import gate
from graph.plan import plan
from graph.reconcile import reconcile
from graph.services import Services
from graph.state import Call, CallState, Nothing, TurnState

Graph = CompiledStateGraph[TurnState, None, TurnState, TurnState]
Pipeline = CompiledStateGraph[CallState, None, CallState, Nothing]


def build(services: Services) -> Graph:
    """The graph of a turn, without a checkpointer: each run brings its own, fenced by its epoch."""
    graph = StateGraph(TurnState)
    graph.add_node("plan", partial(plan, services))
    graph.add_node("gate", partial(gate, services))
    graph.add_node("call", build_call(services))
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", _after_plan, ["gate", "call", END])
    graph.add_conditional_edges("gate", _to_calls, ["call", "plan"])
    graph.add_edge("call", "plan")
    return graph.compile()


def build_call(services: Services) -> Pipeline:
    """The pipeline of one call; it hands nothing back, since its result is in the call's row."""
    call = StateGraph(CallState, output_schema=Nothing)
    call.add_node("approval", partial(contained(approval), services))
    call.add_node("execute", partial(contained(execute), services))
    call.add_node("reconcile", partial(contained(reconcile), services))
    call.add_edge(START, "approval")
    call.add_conditional_edges("approval", _next, {"approval": "approval", "execute": "execute", "end": END})
    call.add_conditional_edges("execute", _next, {"approval": "approval", "reconcile": "reconcile", "end": END})
    call.add_conditional_edges("reconcile", _next, {"approval": "approval", "reconcile": "reconcile", "end": END})
    return call.compile()


def _after_plan(state: TurnState) -> list[Send] | Literal["gate", "__end__"]:
    """To the gate with new calls; back to their pipelines with calls that have no result yet."""
    if state["ending"]:
        return "__end__"
    return [Send("call", _call_state(call)) for call in state["calls"]] or "gate"


def _to_calls(state: TurnState) -> list[Send] | Literal["plan"]:
    """One pipeline per call that goes on; none left: straight back to plan with the results there are."""
    return [Send("call", _call_state(call)) for call in state["calls"]] or "plan"


def _call_state(call: Call) -> CallState:
    return {"call": call, "next": "approval", "problem": None}


def _next(state: CallState) -> str:
    return state["next"]


def picture() -> str:
    """The graph as Mermaid, drawn from the graph itself."""
    services: Any = None  # nothing is run
    return build(services).get_graph(xray=True).draw_mermaid()
