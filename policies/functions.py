"""Rules that CEL cannot say: typed Python functions (P7).

A condition written `python:package.module.function` names a function of the tool's arguments and facts:

    def only_named_recipients(arguments: SendMail.Arguments, facts: SendMail.Facts) -> bool: ...

Both parameters and the result are annotated; that is checked against the tool when the rules are loaded. It may be
`async`. Like every rule it is a function of what it is given (P2): it runs in a thread of its own, an async one with
an event loop of its own, so it cannot use the application's connections; what has to be looked up is a fact. That way
one that hangs costs a thread and an ask, never the process (P6). (Native code that holds the interpreter's lock, such
as a runaway regular expression, can still stop it.) The module's source is part of the policy's version (P8).
"""

import asyncio
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel

from policies.errors import closest
from policies.schemas import CannotTell, ToolSchema

PREFIX = "python:"
MAX_HANGING = 8  # calls of one function that never came back; with as many, it is not called any more
Outcome = tuple[object, BaseException | None]


class Unfit(Exception):
    """The function cannot be used, with what came, what was expected, and what may have been meant."""

    def __init__(self, came: str, expected: str, suggestion: str | None = None) -> None:
        super().__init__(came, expected, suggestion)
        self.came, self.expected, self.suggestion = came, expected, suggestion


@dataclass(slots=True)
class FunctionRule:
    """A Python function that answers for one tool; keeps count of its calls that never came back."""

    name: str  # "package.module.function"
    call: Callable[..., object]
    sources: tuple[bytes, ...]
    _hanging: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    async def answer(self, arguments: BaseModel, facts: BaseModel, seconds: float) -> bool:
        """True or False within `seconds`. Raises `CannotTell` for anything else that it does."""
        if self._hanging >= MAX_HANGING:
            raise CannotTell(f"{self.name} is not called: {self._hanging} earlier calls have not come back")
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Outcome] = loop.create_future()
        came_back, given_up = threading.Event(), threading.Event()

        def work() -> None:
            outcome = self._call(arguments, facts)
            with self._lock:
                came_back.set()
                if given_up.is_set():
                    self._hanging -= 1
                    return
            try:
                loop.call_soon_threadsafe(_settle, answered, outcome)
            except RuntimeError:  # the loop is closed: nobody waits for the answer any more
                return

        threading.Thread(target=work, name=f"rule {self.name}", daemon=True).start()
        try:
            await asyncio.wait({answered}, timeout=max(seconds, 0.0))
        finally:
            with self._lock:
                if not came_back.is_set():
                    given_up.set()
                    self._hanging += 1
        if not answered.done():
            raise CannotTell(f"{self.name} did not answer in time")
        result, error = answered.result()
        if error is not None:
            raise CannotTell(f"{self.name} raised {type(error).__name__}: {error}")
        if result is not True and result is not False:
            raise CannotTell(f"{self.name} returned {type(result).__name__}, expected bool")
        return result

    def _call(self, arguments: BaseModel, facts: BaseModel) -> Outcome:
        try:
            result = self.call(arguments, facts)
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
        except BaseException as error:  # noqa: BLE001  # whatever a rule raises, SystemExit too, is no answer
            return None, error
        return result, None


def _settle(answered: "asyncio.Future[Outcome]", outcome: Outcome) -> None:
    if not answered.done():
        answered.set_result(outcome)


def find(name: str, schema: ToolSchema) -> FunctionRule:
    """The function `name` ("package.module.function") for a tool. Raises `Unfit`."""
    module_name, _, attribute = name.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in name.split(".")):
        raise Unfit(f'"{name}" is not the name of a function.', "Write python:package.module.function.")
    try:
        module = import_module(module_name)
    except Exception as error:  # importing runs foreign code: anything may come
        raise Unfit(
            f"The module {module_name} cannot be imported ({type(error).__name__}: {error}).",
            "A module that Python finds was expected.",
        ) from error
    call = getattr(module, attribute, None)
    if not inspect.isfunction(call):
        defined = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        near = closest(attribute, defined)
        raise Unfit(
            f"{module_name} has no function {attribute}.",
            f"It defines: {', '.join(sorted(defined)) or 'none'}.",
            near and f"{PREFIX}{module_name}.{near}",
        )
    _check_signature(name, call, schema)
    return FunctionRule(name, call, tuple(_sources(name, module_name, call)))


def _check_signature(name: str, call: Callable[..., object], schema: ToolSchema) -> None:
    expected = (
        f"Expected: def {name.rpartition('.')[2]}"
        f"(arguments: {schema.arguments.__qualname__}, facts: {schema.facts.__qualname__}) -> bool."
    )
    parameters = list(inspect.signature(call).parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(parameters) != 2 or any(parameter.kind not in positional for parameter in parameters):
        raise Unfit(f"{name} takes {inspect.signature(call)}.", expected)
    try:
        hints = get_type_hints(call)
    except Exception as error:  # annotations are evaluated: anything may come
        raise Unfit(f"The annotations of {name} cannot be read ({error}).", expected) from error
    for parameter, given in zip(parameters, (schema.arguments, schema.facts), strict=True):
        accepts: Any = hints.get(parameter.name)
        if not (isinstance(accepts, type) and issubclass(given, accepts) and issubclass(accepts, BaseModel)):
            shown = getattr(accepts, "__qualname__", accepts) if accepts else "nothing"
            raise Unfit(f"{name} takes {shown} as {parameter.name}.", expected)
    if hints.get("return") is not bool:
        shown = getattr(hints.get("return"), "__qualname__", hints.get("return")) or "nothing that is said"
        raise Unfit(f"{name} returns {shown}.", expected)


def _sources(name: str, module_name: str, call: Callable[..., object]) -> Iterator[bytes]:
    """The sources of the module that is named, and of the one that defines the function, decorators taken off."""
    modules = {module_name, call.__module__, inspect.unwrap(call).__module__}
    for module in sorted(modules):
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is None or not Path(file).is_file():
            raise Unfit(
                f"The source of {name} cannot be read ({module} has no file).",
                "A function in a .py file was expected, since its source is part of the policy's version.",
            )
        yield Path(file).read_bytes()
