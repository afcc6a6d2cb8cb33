"""Which calls must pause: the rules file, its compiler, and the verdicts that come of it.

`load_rules(RULES, schemas)` gives the `Policy`, `await policy.decide(tool, arguments, facts)` the `Verdict` on a call.
"""

from policies.compiler import RULES, compile_rules, load_rules
from policies.errors import PolicyError, RulesRefused
from policies.policy import Explanation, Policy
from policies.schemas import ToolSchema
from policies.verdicts import Flag, Stricter, Verdict, stricter

__all__ = [
    "RULES",
    "Explanation",
    "Flag",
    "Policy",
    "PolicyError",
    "RulesRefused",
    "Stricter",
    "ToolSchema",
    "Verdict",
    "compile_rules",
    "load_rules",
    "stricter",
]
