"""Mail: the kind that nobody can look up. What is definite is said, what is not stays unknown and goes to people."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from placet.record import by_hand, people
from placet.record.database import Database
from placet.rules import schema_of
from policies import RULES, RulesRefused, ToolSchema, compile_rules, load_rules
from tests.conftest import Clock
from tests.peers.smtp_server import Fault, PostOffice
from tests.peers.worker import killed, proposes
from tests.policies.shop import OTHERS, SHOP
from tests.steps import TENANT, open_test_house, settings_for_tests
from tools import mail
from tools.contract import NothingSent, Refused
from tools.mail import MailMisconfigured
from tools.mail.send_email import EmailArguments, SendEmail
from tools.mail.smtp import AnswerLost, Server

HELLO = {"to": ["ana@shop.example"], "subject": "Hello", "body": "Your parcel is late.\n.\nSorry.\n"}
TO_TWO = {**HELLO, "to": ["ana@shop.example", "bo@elsewhere.example"]}


@pytest.fixture
async def post() -> AsyncIterator[PostOffice]:
    async with PostOffice() as office:
        yield office


def sender(post: PostOffice, **more: Any) -> SendEmail:
    """The tool, towards this server."""
    given = {"preparing": 5.0, "answering": 5.0} | more
    return SendEmail(
        Server(post.host, post.port, "none", "desk@shop.example", **given), own_domains=frozenset({"shop.example"})
    )


def configured(post: PostOffice) -> dict[str, Any]:
    """Settings towards this server."""
    return {
        "smtp_host": post.host,
        "smtp_port": post.port,
        "smtp_tls": "none",
        "smtp_from": "desk@shop.example",
        "own_domains": "shop.example",
    }


def email(**changed: Any) -> EmailArguments:
    return EmailArguments.model_validate({**TO_TWO, **changed})


# What may be said


@pytest.mark.parametrize(
    "changed",
    [
        {"subject": "Hello\r\nBcc: thief@evil.example"},
        {"subject": "Hello\nBcc: thief@evil.example"},
        {"subject": "Hello\u2028there"},
        {"subject": "refund \u202e00.1"},
        {"subject": "a\0b"},
        {"to": ["ana@shop.example\r\nRCPT TO:<thief@evil.example>"]},
        {"to": ["ana@shop.example\n"]},
        {"to": ["ana@shop.example, thief@evil.example"]},
        {"to": ["Ana <ana@shop.example>"]},
        {"to": ["ana"]},
        {"to": ["ana@localhost"]},
        {"to": []},
        {"to": ["ana@shop.example", "ANA@shop.example"]},
        {"to": [f"a{n}@shop.example" for n in range(51)]},
        {"reply_to": "x@shop.example\r\nBcc: thief@evil.example"},
        {"body": "a\x1bb"},
        {"body": "a\rb"},
        {"body": ""},
        {"bcc": ["thief@evil.example"]},
    ],
)
def test_p6_what_is_no_address_or_no_line_is_an_error_to_the_model(changed: dict[str, Any]) -> None:
    """Line breaks in headers, addresses that are none or are two, unknown fields: refused before anybody is asked."""
    with pytest.raises(ValidationError):
        email(**changed)


def test_a2_an_address_has_one_form() -> None:
    """What is approved is the form that is sent to: domain in small letters, Unicode composed; reading it again changes
    nothing."""
    args = email(to=["Ana@SHOP.example", "jo\u0308rg@B\u00dcCHER.example"])

    assert args.to == ["Ana@shop.example", "j\u00f6rg@b\u00fccher.example"]
    assert EmailArguments.model_validate_json(args.model_dump_json()) == args


async def test_p3_facts_count_who_is_outside(post: PostOffice) -> None:
    """Recipients outside our domains are counted by domain in ASCII, so a look-alike is not ours."""
    tool = sender(post)
    args = email(to=["ana@shop.example", "x@\u0455hop.example", "y@sub.shop.example"], reply_to="z@free.example")

    facts = await tool.facts(args)
    preview = await tool.preview(args, facts)

    assert facts.model_dump() == {
        "recipient_count": 3,
        "external_count": 2,
        "external_domains": ["sub.shop.example", "xn--hop-ehd.example"],
        "reply_goes_elsewhere": True,
        "characters": len(args.body),
    }
    assert preview.title == "Send an email to 3 people: Hello"
    assert [row["outside"] for row in preview.sample] == [False, True, True]
    assert any("xn--hop-ehd.example" in warning for warning in preview.warnings)
    assert any("z@free.example" in warning for warning in preview.warnings)


@pytest.mark.parametrize(
    ("changed", "own", "kind", "rule"),
    [
        ({"to": ["ana@shop.example"]}, "shop.example", "auto", "send_email.auto"),
        ({"to": ["ana@shop.example"], "reply_to": "x@free.example"}, "shop.example", "ask", "mail"),
        ({"to": ["ana@shop.example"]}, "", "ask", "mail-outside"),
        ({"to": ["ana@free.example"]}, "shop.example", "ask", "mail-outside"),
        ({"to": ["ana@shop.example", "bo@shop.example"]}, "shop.example", "ask", "mail"),
        ({"to": ["ana@shop.example", "bo@free.example"]}, "shop.example", "ask", "mail-outside"),
    ],
)
async def test_p1_only_one_person_of_our_own_house_is_written_to_without_asking(
    post: PostOffice, changed: dict[str, Any], own: str, kind: str, rule: str
) -> None:
    """By itself goes a mail to one own address whose answers stay inside; without own domains every mail asks."""
    [tool] = mail.tools(settings_for_tests(**{**configured(post), "own_domains": own}))
    others = [schema for schema in OTHERS if schema.name != tool.name]
    rules = load_rules(RULES, [*SHOP, schema_of(tool)], absent=others)

    verdict = await rules.decide("send_email", args := email(**changed), await tool.facts(args))

    assert (verdict.kind, verdict.rule, verdict.policy_error) == (kind, rule, None)


def test_p7_the_rules_of_a_tool_that_is_not_configured_are_checked_but_not_required() -> None:
    """A rules file may be silent about mail where no server is configured, and not say nonsense about it."""
    text = RULES.read_text()
    silent = text[: text.index("[send_email]")]
    typo = text.replace("facts.external_count", "facts.external_cuont", 1)
    known: list[ToolSchema] = [*SHOP, *(schema for schema in OTHERS if schema.name == "delete_customers")]
    absent = [schema for schema in OTHERS if schema.name != "delete_customers"]

    assert compile_rules(silent, source="rules.toml", schemas=known, absent=absent)
    with pytest.raises(RulesRefused, match="external_count"):
        compile_rules(typo, source="rules.toml", schemas=known, absent=absent)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"smtp_from": None}, "PLACET_SMTP_FROM"),
        ({"smtp_from": "desk"}, "an address like"),
        ({"own_domains": "shop.example,?"}, "PLACET_OWN_DOMAINS"),
        ({"smtp_user": "desk"}, "PLACET_SMTP_PASSWORD"),
    ],
)
def test_p7_a_mail_server_that_cannot_be_used_stops_the_start(changed: dict[str, Any], said: str) -> None:
    """Half a configuration is an error at start that names the setting; none is no tool."""
    complete = {"smtp_host": "mail.example", "smtp_from": "desk@shop.example", "own_domains": "shop.example"}

    with pytest.raises(MailMisconfigured, match=said):
        mail.tools(settings_for_tests(**{**complete, **changed}))

    assert mail.tools(settings_for_tests()) == []
    assert len(mail.tools(settings_for_tests(**complete))) == 1


def test_v4_the_password_of_the_mail_server_is_never_shown() -> None:
    """Neither the settings nor the tool say it."""
    settings = settings_for_tests(smtp_host="h", smtp_from="a@b.example", smtp_user="u", smtp_password="geheim1")
    [tool] = mail.tools(settings)

    assert isinstance(settings.smtp_password, SecretStr)
    assert "geheim1" not in repr(settings) + repr(vars(tool))


# What is sent


async def test_e3_the_receipt_says_what_became_of_each_recipient(post: PostOffice) -> None:
    """The message arrives as it was written, once, under an id made from the operation; who was refused is a refused line."""
    post.recipients["bo@elsewhere.example"] = "550 5.1.1 no such mailbox"

    receipt = await sender(post).execute(email(reply_to="desk@shop.example"), "op-1")

    assert post.taken == {"<op-1@shop.example>": 1}
    assert [(line.ref, line.status, line.reason) for line in receipt.lines] == [
        ("ana@shop.example", "done", None),
        ("bo@elsewhere.example", "refused", "550 5.1.1 no such mailbox"),
    ]
    assert (receipt.external_id, receipt.data["answer"]) == ("<op-1@shop.example>", "250 2.0.0 taken")
    [message], [envelope] = post.messages, post.envelopes
    assert envelope.rcpt_tos == ["ana@shop.example"]
    assert (message["To"], message["Reply-To"]) == ("ana@shop.example, bo@elsewhere.example", "desk@shop.example")
    assert message.get_content().splitlines() == ["Your parcel is late.", ".", "Sorry."]


async def test_e3_every_script_arrives_as_it_was_written(post: PostOffice) -> None:
    """Subject and text in any script; a domain outside ASCII goes as punycode and needs nothing of the server."""
    post.smtputf8 = False
    text = "Zażółć gęślą jaźń\n王小明 שלום\n"
    args = email(to=["ana@b\u00fccher.example"], subject="Rückerstattung für 王小明 " * 6, body=text)

    await sender(post).execute(args, "op-1")

    [message], [envelope] = post.messages, post.envelopes
    assert envelope.rcpt_tos == ["ana@xn--bcher-kva.example"]
    assert message["Subject"] == args.subject
    assert message.get_content().splitlines() == text.splitlines()


async def test_e3_a_name_outside_ascii_needs_a_server_that_takes_it(post: PostOffice) -> None:
    """jörg@ goes out with SMTPUTF8; a server without it is a clear no, before anything was sent."""
    args = email(to=["j\u00f6rg@shop.example"])

    await sender(post).execute(args, "op-1")
    post.smtputf8 = False
    with pytest.raises(Refused) as no:
        await sender(post).execute(args, "op-2")

    assert post.taken == {"<op-1@shop.example>": 1}
    assert post.envelopes[0].rcpt_tos == ["j\u00f6rg@shop.example"]
    assert no.value.code == "no_smtputf8"


# What goes wrong


async def test_e8_a_server_that_is_not_there_got_nothing(post: PostOffice) -> None:
    """Connection refused: nothing was sent, and sending again is safe."""
    tool = sender(post)
    await post.__aexit__()

    with pytest.raises(NothingSent):
        await tool.execute(email(), "op-1")


@pytest.mark.parametrize("fault", ["cut_at_greeting", "cut_before_content"])
async def test_e8_a_connection_that_ends_before_the_content_sent_nothing(post: PostOffice, fault: Fault) -> None:
    """Until the server has agreed to take the content, a lost connection is definite."""
    post.fault = fault

    with pytest.raises(NothingSent):
        await sender(post).execute(email(), "op-1")

    assert not post.taken


@pytest.mark.parametrize(
    ("recipients", "data", "answer", "kind", "code"),
    [
        ("550 no", None, "250 taken", Refused, "recipients_refused"),
        ("450 later", None, "250 taken", NothingSent, None),
        ("250 good", "554 no", "250 taken", Refused, "mail_refused"),
        ("250 good", "451 later", "250 taken", NothingSent, None),
        ("250 good", None, "554 5.7.1 spam", Refused, "mail_refused"),
        ("250 good", None, "452 4.3.1 no room", NothingSent, None),
    ],
)
async def test_e4_a_no_of_the_server_is_definite(
    post: PostOffice, recipients: str, data: str | None, answer: str, kind: type[Exception], code: str | None
) -> None:
    """5xx is refused and 4xx is "not now", at every step, also as the answer to the content: it took nothing."""
    post.recipients = dict.fromkeys(email().to, recipients)
    post.data_answer, post.answer = data, answer

    with pytest.raises(kind) as no:
        await sender(post).execute(email(), "op-1")

    assert not post.taken
    assert getattr(no.value, "code", None) == code


@pytest.mark.parametrize(
    ("fault", "taken"),
    [("cut_within_content", 0), ("cut_after_content", 1), ("hang_after_content", 1), ("nonsense_after_content", 1)],
)
async def test_e4_no_answer_to_the_content_is_unknown(post: PostOffice, fault: Fault, taken: int) -> None:
    """Whether it was taken or not looks the same from here, so it is neither a failure nor nothing sent."""
    post.fault = fault

    with pytest.raises(AnswerLost):
        await sender(post, answering=0.3).execute(email(), "op-1")

    assert post.taken.total() == taken


async def test_e5_mail_cannot_be_observed(post: PostOffice) -> None:
    """Looking says unknown, before and after, and tells people what to look for."""
    tool = sender(post)
    before = await tool.observe(email(), "op-1")
    await tool.execute(email(), "op-1")
    after = await tool.observe(email(), "op-1")

    assert (before.status, after.status) == ("unknown", "unknown")
    assert "<op-1@shop.example>" in after.evidence
    assert str(post.port) in after.evidence


async def test_e4_a_wrong_password_is_definite_and_a_right_one_logs_in() -> None:
    """A login that fails says which settings to check."""
    async with PostOffice(user=("desk", "right")) as post:
        await sender(post, user="desk", password=SecretStr("right")).execute(email(), "op-1")
        with pytest.raises(Refused, match="PLACET_SMTP_PASSWORD") as no:
            await sender(post, user="desk", password=SecretStr("wrong")).execute(email(), "op-2")

    assert no.value.code == "login_refused"
    assert post.taken == {"<op-1@shop.example>": 1}


async def test_v4_without_tls_no_password_leaves() -> None:
    """TLS is asked for and the server has none: nothing was sent, no login was tried."""
    async with PostOffice(user=("desk", "right")) as post:
        server = Server(post.host, post.port, "starttls", "desk@shop.example", "desk", SecretStr("right"))
        with pytest.raises(NothingSent):
            await SendEmail(server).execute(email(), "op-1")

    assert post.logins == 0


# Through the graph


async def test_e7_a_mail_is_asked_approved_and_sent_once(database: Database, post: PostOffice) -> None:
    """Two recipients ask; approved, the server takes one message and the model is told of each recipient."""
    house = await open_test_house(database, proposes("send_email", TO_TWO), **configured(post))
    turn = await house.run("Write to them")
    [asked] = await house.pending(turn)
    assert not post.taken

    await house.approve(asked)
    await house.worker.run_until_idle()

    [effect] = await house.effects(turn)
    assert post.taken == {f"<{effect.operation_id}@shop.example>": 1}
    assert (effect.status, (await house.turn(turn.turn_id)).status) == ("committed", "completed")


async def test_p1_a_note_to_one_of_our_own_goes_by_itself(database: Database, post: PostOffice) -> None:
    """One own recipient: nobody is asked, and there is still an effect with its receipt."""
    house = await open_test_house(database, proposes("send_email", HELLO), **configured(post))

    turn = await house.run("Write to Ana")

    [effect] = await house.effects(turn)
    assert (post.taken.total(), effect.status, turn.status) == (1, "committed", "completed")


async def test_e6_a_mail_whose_answer_was_lost_waits_for_people(database: Database, post: PostOffice) -> None:
    """The server took it and hung up: unknown, looked for, still unknown; nothing is sent again, and people see why."""
    house = await open_test_house(database, proposes("send_email", HELLO), **configured(post))
    post.fault = "cut_after_content"

    turn = await house.run("Write to Ana")
    post.fault = None
    await house.worker.run_until_idle()

    [effect] = await house.effects(turn)
    [item] = await house.items(turn)
    assert (effect.status, turn.status, item.result) == ("unknown", "awaiting_reconciliation", None)
    assert effect.evidence[-1]["said"].startswith("unknown: Mail cannot be looked up")
    assert post.taken.total() == 1


async def test_e6_a_person_who_has_looked_lets_the_turn_go_on(database: Database, post: PostOffice) -> None:
    """Somebody finds the message in the server's log and says so: the model gets its one result, nothing is sent again."""
    house = await open_test_house(database, proposes("send_email", HELLO), **configured(post))
    post.fault = "cut_after_content"
    turn = await house.run("Write to Ana")
    [effect] = await house.effects(turn)

    async with database.transaction() as tx:
        await people.ensure(tx, TENANT, "olga", name="Olga", roles=["operator"], duties=[])
        olga = await people.get(tx, TENANT, "olga")
        await by_hand.resolve(
            tx, olga, effect, to="committed", reason="It is in the log.", external_id=post.messages[0]["Message-ID"]
        )
    await house.worker.run_until_idle()

    [item] = await house.items(turn)
    assert ((await house.turn(turn.turn_id)).status, item.status) == ("completed", "completed")
    assert post.taken == {f"<{effect.operation_id}@shop.example>": 1}


async def test_e8_what_was_never_taken_goes_again_by_itself_three_times(database: Database, post: PostOffice) -> None:
    """Nothing was sent, so the same operation goes again; a server that stays away is a failure that says so."""
    house = await open_test_house(database, proposes("send_email", HELLO), **configured(post))
    post.data_answer = "451 later"

    turn = await house.run("Write to Ana")

    [effect] = await house.effects(turn)
    [item] = await house.items(turn)
    assert item.result is not None
    assert (effect.status, effect.attempts, item.result["error"]["code"]) == ("absent", 3, "not_sent")
    assert item.result["error"]["retryable"]
    assert not post.taken


@pytest.mark.parametrize(
    ("point", "taken", "status"),
    [
        ("dispatch:committed", 0, "unknown"),
        ("call:before", 0, "unknown"),
        ("call:after", 1, "unknown"),
        ("receipt:commit", 1, "unknown"),
        ("receipt:committed", 1, "committed"),
    ],
)
async def test_e6_a_killed_worker_never_makes_a_mail_go_twice(
    database: Database, database_url: str, post: PostOffice, clock: Clock, point: str, taken: int, status: str
) -> None:
    """kill -9 anywhere between dispatch and receipt: what was not heard of is unknown and stays so, whether the server has
    it or not; a person says which, and then the turn goes on."""
    house = await open_test_house(database, proposes("send_email", HELLO), **configured(post))
    turn = await house.ask("Write to Ana")

    await killed(point, database_url, "send_email", HELLO, **configured(post))
    await clock.advance(60)
    await house.worker.run_until_idle()

    [effect] = await house.effects(turn)
    assert (post.taken.total(), effect.status) == (taken, status)
    expected = "completed" if status == "committed" else "awaiting_reconciliation"
    assert (await house.turn(turn.turn_id)).status == expected
